//! Draws the results: latencies over percentiles, in one SVG.
//!
//! Each nine of a percentile takes the same room. Otherwise the rare latencies, which matter most, would be a thin line.

use std::fmt::Display;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use tempfile::NamedTempFile;

use super::Results;
use super::tally::Latencies;
use super::text::title;
use crate::exit::Failure;

const SIZE: (u32, u32) = (1_000, 640);
/// The chart ends at 99.999 %.
const NINES: f64 = 5.0;

/// A temporary file, which replaces the file with the chart's name once it is drawn.
#[derive(Debug)]
pub(crate) struct Chart {
    file: NamedTempFile,
    path: PathBuf,
}

impl Chart {
    pub(crate) fn open(path: &Path) -> Result<Chart, Failure> {
        let refused =
            |why: &dyn Display| Failure::usage(format!("cannot write --chart {}: {why}", path.display()));
        let end = path.extension().unwrap_or_default();
        if !end.eq_ignore_ascii_case("svg") {
            return Err(refused(&"the chart is an SVG, so its name has to end in .svg"));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666)) // less the umask
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(|error| refused(&error))?;
        Ok(Chart {
            file,
            path: path.to_owned(),
        })
    }

    pub(crate) fn draw(mut self, results: &Results) -> Result<(), Failure> {
        let failed = |error: &dyn Display| Failure::system("draw the chart", error);
        let mut svg = String::new();
        draw(&mut svg, results).map_err(|error| failed(&error))?;
        let written = self.file.write_all(svg.as_bytes());
        written.map_err(|error| failed(&error))?;
        let placed = self.file.persist(self.path);
        placed.map(drop).map_err(|error| failed(&error))
    }
}

fn draw(svg: &mut String, results: &Results) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let curves: Vec<(String, Vec<(f64, f64)>)> = timed(results)
        .filter(|(_, latencies)| latencies.count() > 0)
        .map(|(name, latencies)| (name, curve(latencies)))
        .collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    // Space for the legend below: curves rise.
    let least = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.1).fold(1e-3, f64::max);
    let nines = points().map(|point| point.0).fold(1.0, f64::max).ceil();
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("quorlock bench: {}", title(results)), ("sans-serif", 20))
        .margin(16)
        .margin_right(40)
        .x_label_area_size(46)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..nines, (least.min(most) / 10.0..most * 2.0).log_scale())?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(nines as usize + 1)
        .x_label_formatter(&|nines| format!("{} %", 100.0 * (1.0 - 10_f64.powf(-nines))))
        .x_desc("percentile")
        .y_desc("milliseconds")
        .label_style(("sans-serif", 14))
        .draw()?;
    for (number, (name, points)) in curves.iter().enumerate() {
        let style = Palette99::pick(number).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()
}

fn timed(results: &Results) -> impl Iterator<Item = (String, &Latencies)> {
    let nodes = results.nodes.iter();
    let nodes = nodes.map(|node| (format!("round trip to {}", node.name), &node.plain));
    let loads = results.loads.iter().flat_map(|load| match load.contended {
        true => vec![("hand-over: released to next grant", &load.gap)],
        false if load.tasks == 1 => vec![
            ("one task: acquire", &load.acquire),
            ("one task: release", &load.release),
        ],
        false => Vec::new(),
    });
    let loads = loads.map(|(name, latencies)| (name.to_owned(), latencies));
    nodes.chain(loads)
}

/// Returns pairs of nines and milliseconds: 1 nine is 90 %, 2 are 99 %. Few samples have few nines.
fn curve(latencies: &Latencies) -> Vec<(f64, f64)> {
    let known = (latencies.count() as f64).log10().min(NINES);
    latencies
        .quantiles()
        .map(|(quantile, took)| ((-(1.0 - quantile).log10()).min(known), took.as_secs_f64() * 1e3))
        .collect()
}
