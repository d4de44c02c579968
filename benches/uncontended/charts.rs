//! The chart of this benchmark: how latencies grow.

use std::path::Path;

use crate::common::charts::{Drawn, Panel, canvas};
use crate::measure::Sample;
use crate::tables::{Series, Step};

type Line = (&'static str, fn(&Step) -> f64);

const LINES: [Line; 4] = [
    ("quorlock, acquire", |step| acquire(&step.quorlock)),
    ("quorlock, release", |step| release(&step.quorlock)),
    ("floor, acquire", |step| acquire(&step.floor)),
    ("floor, release", |step| release(&step.floor)),
];

pub(crate) fn draw(folder: &Path, nodes: &[Step], held: &[Step]) -> Drawn {
    std::fs::create_dir_all(folder)?;
    let file = folder.join("growth.svg");
    let title = "An acquire and a release that nobody else wants (median of the rounds' medians; floor: the same requests)";
    let (root, left) = canvas(&file, title, &LINES.map(|(name, _)| name.to_owned()))?;
    let all = nodes.iter().chain(held);
    let top = all.flat_map(|step| LINES.map(|(_, value)| value(step)));
    let top = 1.15 * top.fold(1.0, f64::max);
    let panels = [("nodes, 1 lock held", nodes), ("locks held, 5 nodes", held)];
    for (area, (x, steps)) in left.split_evenly((1, 2)).iter().zip(panels) {
        let line = |(_, value): Line| steps.iter().map(|step| (step.size as f64, value(step))).collect();
        Panel {
            x,
            y: "microseconds; less is better",
            top,
            lines: LINES.map(line).into(),
        }
        .draw(area)?;
    }
    Ok(root.present()?)
}

fn acquire(series: &Series) -> f64 {
    series.median(|sample: &Sample| sample.acquire_us(50.0))
}

fn release(series: &Series) -> f64 {
    series.median(|sample: &Sample| sample.release_us(50.0))
}
