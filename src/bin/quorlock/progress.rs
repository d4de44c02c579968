//! How far it is: a bar in the last line of the terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the time is shown anew.
const TICK: Duration = Duration::from_millis(200);

/// Nothing is shown at first.
#[derive(Default)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Shows which part of how many is being done, and what that is.
    pub(crate) fn show(&mut self, progress: Option<(usize, usize, String)>) {
        let Some((part, parts, what)) = progress else {
            if let Some(bar) = self.0.take() {
                bar.finish_and_clear();
            }
            return;
        };
        let bar = self.0.get_or_insert_with(|| bar(parts));
        bar.set_position(part as u64);
        bar.set_message(what);
        bar.enable_steady_tick(TICK);
    }

    /// Writes something else there, with the bar out of the way.
    pub(crate) fn aside(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

fn bar(parts: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("quorlock: {bar:40} {pos}/{len}  {elapsed}  {msg}");
    ProgressBar::with_draw_target(Some(parts as u64), ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
