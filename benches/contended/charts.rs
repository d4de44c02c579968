//! Charts, as SVG: whoever shows them has the letters.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::Figures;
use crate::plan::World;
use crate::tables::Series;

type Worlds = [(World, Vec<Series>)];
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Told apart also by those who do not see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(150, 205, 120),
    RGBColor(204, 121, 167),
    RGBColor(60, 60, 60),
];
const SIZE: (u32, u32) = (1000, 460);
const LEGEND: i32 = 190;
const FONT: &str = "sans-serif";

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

/// A row for each contender, a dot for each world.
fn dots(
    file: &Path,
    title: &str,
    unit: &str,
    worlds: &[&(World, Vec<Series>)],
    value: fn(&Figures) -> f64,
) -> Drawn {
    let root = canvas(file, title)?;
    let (left, right) = root.split_horizontally(SIZE.0 as i32 - LEGEND);
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
        // The first one at the top.
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
        .light_line_style(RGBColor(235, 235, 235))
        .draw()?;
    let entries: Vec<String> = worlds.iter().map(|(world, _)| short(world)).collect();
    for (number, (_, all)) in worlds.iter().enumerate() {
        let style = COLOURS[number % COLOURS.len()].filled();
        // One below the other, for they may have the same value.
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
    legend(&right, &entries)?;
    Ok(root.present()?)
}

/// Grants per second by how many want it: in one process, and in more and more.
fn lines(file: &Path, worlds: &[&(World, Vec<Series>)]) -> Drawn {
    let root = canvas(
        file,
        "Grants per second, held for about 2 ms each (median of the rounds; those who want it ask again at once)",
    )?;
    let (left, right) = root.split_horizontally(SIZE.0 as i32 - LEGEND);
    let panels = left.split_evenly((1, 2));
    let one = |world: &World| world.processes == 1;
    let most = worlds.iter().flat_map(|world| {
        world
            .1
            .iter()
            .map(|series| series.median(|round| round.grants_per_s))
    });
    let top = 1.15 * most.fold(1.0, f64::max);
    for (panel, single) in panels.iter().zip([true, false]) {
        let here: Vec<_> = worlds.iter().filter(|(world, _)| one(world) == single).collect();
        let x = |world: &World| if single { world.waiters } else { world.processes } as f64;
        let Some((low, high)) = here
            .first()
            .map(|first| x(&first.0))
            .zip(here.last().map(|last| x(&last.0)))
        else {
            continue;
        };
        let what = if single {
            "waiters in 1 process"
        } else {
            "processes with 4 waiters each"
        };
        let mut chart = ChartBuilder::on(panel)
            .margin(10)
            .x_label_area_size(50)
            .y_label_area_size(60)
            .build_cartesian_2d(
                (low * 0.85..high * 1.18)
                    .log_scale()
                    .with_key_points(here.iter().map(|(world, _)| x(world)).collect()),
                0.0..top,
            )?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .y_max_light_lines(1)
            .x_desc(what)
            .y_desc("grants per second; more is better")
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 14))
            .light_line_style(RGBColor(235, 235, 235))
            .draw()?;
        for number in 0..here.first().map_or(0, |world| world.1.len()) {
            let colour = COLOURS[number % COLOURS.len()];
            let points = here
                .iter()
                .map(|(world, all)| (x(world), all[number].median(|round| round.grants_per_s)));
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)).point_size(4))?;
        }
    }
    let names: Vec<String> = worlds
        .first()
        .map(|world| world.1.iter().map(|series| series.name.to_owned()).collect())
        .unwrap_or_default();
    legend(&right, &names)?;
    Ok(root.present()?)
}

/// White, with its title.
fn canvas<'a>(file: &'a Path, title: &str) -> Result<Area<'a>, Box<dyn Error>> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    Ok(root.titled(title, (FONT, 17))?)
}

fn legend(area: &Area<'_>, entries: &[String]) -> Drawn {
    let style = (FONT, 14)
        .into_text_style(area)
        .pos(Pos::new(HPos::Left, VPos::Center));
    for (number, entry) in entries.iter().enumerate() {
        let y = 30 + 24 * number as i32;
        area.draw(&Circle::new((10, y), 5, COLOURS[number % COLOURS.len()].filled()))?;
        area.draw(&Text::new(entry.as_str(), (24, y), style.clone()))?;
    }
    Ok(())
}

fn short(world: &World) -> String {
    match world.processes {
        1 => format!("1 process x {}", world.waiters),
        processes => format!("{processes} processes x {}", world.waiters),
    }
}

/// Whole powers of ten around all values.
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
