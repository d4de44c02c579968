//! How far it is: a bar in the last line of the terminal.

use std::borrow::Cow;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const STEPS: u64 = 1_000;

/// Nothing is shown at first.
#[derive(Default)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Shows how much is done (0 to 1), and what is being done.
    pub(crate) fn show(&mut self, progress: Option<(f64, String)>) {
        let Some((done, what)) = progress else {
            if let Some(bar) = self.0.take() {
                bar.finish_and_clear();
            }
            return;
        };
        let bar = self.0.get_or_insert_with(bar);
        bar.set_message(Cow::from(what));
        bar.set_position((done * STEPS as f64) as u64);
    }

    /// Writes something else there, with the bar out of the way.
    pub(crate) fn aside(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("quorlock: {bar:40} {percent:>3} %  {msg}");
    ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
