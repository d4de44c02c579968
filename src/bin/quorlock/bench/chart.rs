//! The results drawn: four panels in one SVG.
//!
//! Latencies are drawn over percentiles, and these so that each further nine takes as much room as the one before: what is
//! rare is what matters, and would be a thin line at the edge otherwise.

use std::fmt::Display;
use std::fs::File;
use std::io::{Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Results;
use super::pairs::Pairs;
use super::tally::Latencies;
use super::text::{grouped, whole};
use crate::exit::Failure;
use crate::nodes::counted;

const SIZE: (u32, u32) = (1_200, 900);
const HEAD: u32 = 70;
/// Told apart also by those who do not see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
];
/// Most nines that are drawn: 99.999 %.
const NINES: f64 = 5.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

/// A file that can be written, and has not been yet.
#[derive(Debug)]
pub(crate) struct Chart {
    file: File,
    path: PathBuf,
    /// It did not exist: if nothing comes of the measurement, it goes again.
    unwritten: bool,
}

impl Chart {
    /// Leaves what is in the file as it is.
    pub(crate) fn open(path: &Path) -> Result<Chart, Failure> {
        let refused =
            |why: &dyn Display| Failure::usage(format!("cannot write --chart {}: {why}", path.display()));
        // A name that promises something else would mislead whatever opens it. Pipes and devices have any.
        let is_svg = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("svg"));
        if !is_svg && path.metadata().map_or(true, |metadata| metadata.is_file()) {
            return Err(refused(&"it is an SVG, and its name has to end in .svg"));
        }
        let mut options = File::options();
        options.write(true);
        let (file, unwritten) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(_) => (options.open(path).map_err(|error| refused(&error))?, false),
        };
        Ok(Chart {
            file,
            path: path.to_owned(),
            unwritten,
        })
    }

    pub(crate) fn draw(mut self, results: &Results) -> Result<(), Failure> {
        let failed = |error: &dyn Display| Failure::system("draw the chart", error);
        let text = svg(results).map_err(|error| failed(&error))?;
        // Not a device or a pipe: those have no length.
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            self.file
                .set_len(0)
                .and_then(|()| self.file.rewind())
                .map_err(|error| failed(&error))?;
        }
        self.file
            .write_all(text.as_bytes())
            .map_err(|error| failed(&error))?;
        self.unwritten = false;
        Ok(())
    }
}

impl Drop for Chart {
    fn drop(&mut self) {
        if self.unwritten {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn svg(results: &Results) -> Result<String, DrawingAreaErrorKind<std::io::Error>> {
    let mut text = String::new();
    panels(
        &SVGBackend::with_string(&mut text, SIZE).into_drawing_area(),
        results,
    )?;
    Ok(text)
}

fn panels(root: &Area<'_>, results: &Results) -> Drawn {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    title(&head, results)?;
    let (above, below) = body.split_vertically((SIZE.1 - HEAD) / 2);
    let (one, nodes) = above.split_horizontally(SIZE.0 / 2);
    let (throughput, handed) = below.split_horizontally(SIZE.0 / 2);
    if let Some(first) = results.pairs.first() {
        let curves = [
            ("acquire".to_owned(), &first.acquire),
            ("release".to_owned(), &first.release),
        ];
        percentiles(&one, "A lock nobody else wants, one task", &curves)?;
    }
    let curves: Vec<_> = results
        .nodes
        .iter()
        .map(|node| (node.name.to_string(), &node.plain))
        .collect();
    percentiles(&nodes, "Round trip to each node: SET NX PX", &curves)?;
    rates(&throughput, &results.pairs)?;
    if let Some(all) = &results.hand_over {
        let curves = [
            ("released to next grant".to_owned(), &all.gap),
            ("wait".to_owned(), &all.wait),
        ];
        let title = format!("One lock, {} waiters", results.plan.waiters);
        percentiles(&handed, &title, &curves)?;
    }
    root.present()
}

fn title(area: &Area<'_>, results: &Results) -> Drawn {
    let plan = &results.plan;
    let title = format!(
        "quorlock bench: {}, {} needed",
        counted(results.nodes.len()),
        results.quorum()
    );
    let partial = if results.interrupted.is_some() {
        "; PARTIAL"
    } else {
        ""
    };
    let build = match cfg!(debug_assertions) {
        true => "; UNOPTIMISED BUILD",
        false => "",
    };
    let details = format!(
        "TTL {}, {} fencing tokens, {} for each measurement{build}{partial}",
        humantime::format_duration(plan.ttl),
        if plan.fencing { "with" } else { "without" },
        humantime::format_duration(plan.duration),
    );
    area.draw(&Text::new(title, (20, 14), ("sans-serif", 26)))?;
    area.draw(&Text::new(details, (20, 46), ("sans-serif", 16)))
}

/// Latencies by percentile, in milliseconds.
fn percentiles(area: &Area<'_>, title: &str, curves: &[(String, &Latencies)]) -> Drawn {
    let curves: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .filter(|(_, latencies)| latencies.count() > 0)
        .map(|(name, latencies)| (name.as_str(), curve(latencies)))
        .collect();
    let Some(range) = around(
        curves
            .iter()
            .flat_map(|(_, points)| points.iter().map(|point| point.1)),
    ) else {
        return nothing(area, title);
    };
    let rarest = curves
        .iter()
        .filter_map(|(_, points)| points.last())
        .map(|point| point.0);
    let nines = rarest.fold(1.0, f64::max).ceil();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .margin_right(40)
        .x_label_area_size(46)
        .y_label_area_size(72)
        .build_cartesian_2d(
            0.0..nines,
            range.clone().log_scale().with_key_points(ticks(&range)),
        )?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(nines as usize + 1)
        .x_label_formatter(&|nines| percent(*nines))
        .y_label_formatter(&|ms| plain(*ms))
        .x_desc("percentile")
        .y_desc("milliseconds")
        .label_style(("sans-serif", 14))
        .draw()?;
    for (number, (name, points)) in curves.into_iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 14))
        .draw()
}

/// Locks a second by the number of tasks.
fn rates(area: &Area<'_>, pairs: &[Pairs]) -> Drawn {
    const TITLE: &str = "Throughput: locks acquired and released";
    let points: Vec<(f64, f64)> = pairs
        .iter()
        .map(|pairs| (pairs.tasks as f64, pairs.per_second()))
        .collect();
    let (Some((fewest, _)), Some((most, _))) = (points.first(), points.last()) else {
        return nothing(area, TITLE);
    };
    let highest = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let colour = COLOURS[0];
    let tasks: Range<f64> = fewest / 1.3..most * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(TITLE, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size(72)
        .build_cartesian_2d(
            tasks
                .log_scale()
                .with_key_points(points.iter().map(|point| point.0).collect()),
            0.0..highest * 1.15,
        )?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .x_label_formatter(&|tasks| plain(*tasks))
        .y_label_formatter(&|rate| grouped(whole(*rate)))
        .x_desc("tasks at once")
        .y_desc("locks a second")
        .label_style(("sans-serif", 14))
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
    chart.draw_series(points.iter().map(|&point| {
        let text = grouped(whole(point.1));
        EmptyElement::at(point) + Text::new(text, (-16, -20), ("sans-serif", 14))
    }))?;
    Ok(())
}

fn nothing(area: &Area<'_>, title: &str) -> Drawn {
    area.draw(&Text::new(
        format!("{title}: nothing was measured"),
        (90, 20),
        ("sans-serif", 18),
    ))
}

/// Pairs of nines and milliseconds: 0 nines are 0 %, 1 are 90 %, 2 are 99 %. As far as there is anything to tell apart, and with
/// the longest at the end.
fn curve(latencies: &Latencies) -> Vec<(f64, f64)> {
    const STEPS_PER_NINE: usize = 25;
    let known = (latencies.count() as f64).log10().min(NINES);
    let steps = (known * STEPS_PER_NINE as f64).floor() as usize;
    let steps = (0..=steps)
        .map(|step| step as f64 / STEPS_PER_NINE as f64)
        .filter_map(|nines| {
            let percentile = latencies.percentile(100.0 * (1.0 - 10_f64.powf(-nines)))?;
            Some((nines, ms(percentile)))
        });
    let longest = latencies.max().map(|longest| (known, ms(longest)));
    steps.chain(longest).collect()
}

fn percent(nines: f64) -> String {
    let decimals = (nines.round() as usize).saturating_sub(2);
    format!("{:.decimals$} %", 100.0 * (1.0 - 10_f64.powf(-nines)))
}

/// A number without zeros that say nothing.
fn plain(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A range with some room at both ends, and below more, for the legend: curves rise from the left to the right. `None` if there
/// are no values.
fn around(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    let room = (most / least).powf(0.35).max(1.3);
    Some(least / room..most * room.sqrt())
}

/// 1, 2, 5, 10, 20, 50, and so on; only powers of ten where there are many.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let (first, last) = (
        range.start.log10().floor() as i32,
        range.end.log10().ceil() as i32,
    );
    let steps: &[f64] = if last - first > 3 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    (first..=last)
        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
        .filter(|tick| range.contains(tick))
        .collect()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_end_with_the_longest() {
        for count in [1, 2, 99, 1_234] {
            let mut latencies = Latencies::default();
            (1..=count).for_each(|number| latencies.record(Duration::from_millis(number)));
            let points = curve(&latencies);
            let (nines, longest) = points[points.len() - 1];
            assert_eq!(Some(longest), latencies.max().map(ms));
            assert_eq!(nines, (count as f64).log10());
            assert!(points.is_sorted(), "{points:?}");
        }
    }
}
