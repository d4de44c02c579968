//! A progress bar in the last line of the terminal, hidden at first.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the elapsed time is updated.
const TICK: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Shows the current part, the number of parts, and the part's name. `None` hides the bar.
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
