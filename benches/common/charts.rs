//! Common parts of the charts: SVG files, shown with the viewer's fonts.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn Error>>;

/// Colours that can be told apart with colour blindness (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(150, 205, 120),
    RGBColor(204, 121, 167),
    RGBColor(60, 60, 60),
];
pub(crate) const GRID: RGBColor = RGBColor(235, 235, 235);
pub(crate) const FONT: &str = "sans-serif";
const SIZE: (u32, u32) = (1000, 460);
const LEGEND: i32 = 190;

/// Returns an empty chart with its title and legend, and the area that is left.
pub(crate) fn canvas<'a>(
    file: &'a Path,
    title: &str,
    entries: &[String],
) -> Result<(Area<'a>, Area<'a>), Box<dyn Error>> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, (FONT, 17))?;
    let (left, right) = root.split_horizontally(SIZE.0 as i32 - LEGEND);
    legend(&right, entries)?;
    Ok((root, left))
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

/// Lines over a logarithmic axis. The other axis starts at zero.
pub(crate) struct Panel<'a> {
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    /// The same for all panels of a chart, so that they can be compared.
    pub(crate) top: f64,
    /// In the order of the legend.
    pub(crate) lines: Vec<Vec<(f64, f64)>>,
}

impl Panel<'_> {
    pub(crate) fn draw(&self, area: &Area<'_>) -> Drawn {
        let Some(marks) = self.lines.first().filter(|line| !line.is_empty()) else {
            return Ok(());
        };
        let marks: Vec<f64> = marks.iter().map(|(x, _)| *x).collect();
        let (low, high) = (marks[0], marks[marks.len() - 1]);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(50)
            .y_label_area_size(60)
            .build_cartesian_2d(
                (low * 0.85..high * 1.18).log_scale().with_key_points(marks),
                0.0..self.top,
            )?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .y_max_light_lines(1)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 14))
            .light_line_style(GRID)
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let line = LineSeries::new(line.iter().copied(), colour.stroke_width(2));
            chart.draw_series(line.point_size(4))?;
        }
        Ok(())
    }
}
