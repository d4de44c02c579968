//! Draws a run from the queries of the dashboard.

use std::path::Path;

use plotters::prelude::*;

use crate::prometheus::Prometheus;

const QUERIES: [(&str, &str); 4] = [
    (
        "Acquires a second, by outcome",
        "sum by (outcome) (rate(quorlock_acquires_total[5s]))",
    ),
    (
        "Nodes that give locks, to the process that gets the fewest",
        "min(sum by (instance) (quorlock_node_gives_locks))",
    ),
    (
        "Faults a second, by node and reason",
        "sum by (node, reason) (rate(quorlock_node_faults_total[5s]))",
    ),
    (
        "Leases lost in ten seconds, by reason",
        "increase((sum by (reason) (quorlock_leases_lost_total))[10s:1s])",
    ),
];
/// How much of the run is shown.
const SECONDS: u32 = 35;

pub(crate) async fn draw(prometheus: &Prometheus, file: &Path) {
    let root = SVGBackend::new(file, (900, 700)).into_drawing_area();
    root.fill(&WHITE).unwrap();
    for ((title, query), area) in QUERIES.into_iter().zip(root.split_evenly((4, 1))) {
        let series = prometheus.series(query, SECONDS).await;
        let values = series
            .iter()
            .flat_map(|(_, points)| points)
            .map(|(_, value)| *value);
        let most = values.fold(1.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 15))
            .margin(6)
            .x_label_area_size(20)
            .y_label_area_size(40)
            .build_cartesian_2d(-f64::from(SECONDS)..0.0, 0.0..most)
            .unwrap();
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_label_formatter(&|second| format!("{second} s"))
            .y_labels(4)
            .draw()
            .unwrap();
        for (number, (labels, points)) in series.into_iter().enumerate() {
            let color = Palette99::pick(number).to_rgba();
            let line = chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))
                .unwrap();
            if !labels.is_empty() {
                line.label(labels)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], color.stroke_width(2)));
            }
        }
        let mut legend = chart.configure_series_labels();
        legend
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()
            .unwrap();
    }
    root.present().unwrap();
}
