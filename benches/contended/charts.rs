use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

use crate::common::charts::{COLOURS, Drawn, FONT, GRID, Panel, canvas};
use crate::figures::Figures;
use crate::plan::World;
use crate::tables::Series;

type Worlds = [(World, Vec<Series>)];
pub(crate) fn draw(folder: &Path, worlds: &Worlds) -> Drawn {
    std::fs::create_dir_all(folder)?;
    let at_once: Vec<&(World, Vec<Series>)> =
        worlds.iter().filter(|(world, _)| world.pause.is_zero()).collect();
    dots(
        &folder.join("contended-gap.svg"),
        "Time without a holder, per grant (median of the rounds; those who want it ask again at once)",
        "ms, logarithmic; further left is better",
        &at_once,
        |round| round.gap,
    )?;
    dots(
        &folder.join("contended-wait.svg"),
        "Wait for the lock, 99th percentile (median of the rounds; those who want it ask again at once)",
        "ms, logarithmic; further left is better; a round ends after 700 ms",
        &at_once,
        |round| round.wait_p(99.0),
    )?;
    lines(&folder.join("contended-grants.svg"), &at_once)
}

/// Draws a row for each contender, with a dot for each world.
fn dots(
    file: &Path,
    title: &str,
    unit: &str,
    worlds: &[&(World, Vec<Series>)],
    value: fn(&Figures) -> f64,
) -> Drawn {
    let entries: Vec<String> = worlds.iter().map(|(world, _)| world.label()).collect();
    let (root, left) = canvas(file, title, &entries)?;
    let names: Vec<&str> = worlds
        .first()
        .map(|world| world.1.iter().map(|series| series.name).collect())
        .unwrap_or_default();
    let rows = names.len() as i32;
    let all = worlds
        .iter()
        .flat_map(|world| world.1.iter().map(|series| series.median(value)));
    let mut chart = ChartBuilder::on(&left)
        .margin(10)
        .x_label_area_size(50)
        .y_label_area_size(170)
        .build_cartesian_2d(decades(all).log_scale(), (0..rows).into_segmented())?;
    let name = |row: &SegmentValue<i32>| match row {
        // The first contender is at the top.
        SegmentValue::CenterOf(row) => names.get((rows - 1 - row) as usize).unwrap_or(&"").to_string(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc(unit)
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&name)
        .y_labels(names.len())
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 14))
        .light_line_style(GRID)
        .draw()?;
    for (number, (_, all)) in worlds.iter().enumerate() {
        let style = COLOURS[number % COLOURS.len()].filled();
        // Dots are shifted down, because they may have the same value.
        let below = 6 * number as i32 - 3 * (worlds.len() as i32 - 1);
        for (row, series) in all.iter().enumerate() {
            let at = (
                series.median(value),
                SegmentValue::CenterOf(rows - 1 - row as i32),
            );
            if at.0 > 0.0 {
                let dot = EmptyElement::at(at) + Circle::new((0, below), 5, style);
                chart.draw_series([dot])?;
            }
        }
    }
    Ok(root.present()?)
}

/// Draws grants per second by the number of waiters in one process, and by the number of processes.
fn lines(file: &Path, worlds: &[&(World, Vec<Series>)]) -> Drawn {
    let names: Vec<String> = worlds
        .first()
        .map(|world| world.1.iter().map(|series| series.name.to_owned()).collect())
        .unwrap_or_default();
    let title = "Grants per second, held for about 2 ms each (median of the rounds; those who want it ask again at once)";
    let (root, left) = canvas(file, title, &names)?;
    let grants = |series: &Series| series.median(|round| round.grants_per_s);
    let most = worlds.iter().flat_map(|world| world.1.iter().map(grants));
    let top = 1.15 * most.fold(1.0, f64::max);
    for (area, single) in left.split_evenly((1, 2)).iter().zip([true, false]) {
        let here = || {
            worlds
                .iter()
                .filter(|(world, _)| (world.processes == 1) == single)
        };
        let x = |world: &World| if single { world.waiters } else { world.processes } as f64;
        let line = |number: usize| {
            here()
                .map(|(world, all)| (x(world), grants(&all[number])))
                .collect()
        };
        Panel {
            x: if single {
                "waiters in 1 process"
            } else {
                "processes with 4 waiters each"
            },
            y: "grants per second; more is better",
            top,
            lines: (0..names.len()).map(line).collect(),
        }
        .draw(area)?;
    }
    Ok(root.present()?)
}

/// Returns the powers of ten around all values.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|value| value.is_finite() && *value > 0.0) {
        low = low.min(value);
        high = high.max(value);
    }
    if low > high {
        return 1.0..10.0;
    }
    10_f64.powf(low.log10().floor())..10_f64.powf(high.log10().ceil().max(low.log10().floor() + 1.0))
}
