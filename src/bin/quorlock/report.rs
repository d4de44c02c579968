//! Reports events on standard error, without blocking.
//!
//! A full pipe, or a terminal stopped with Ctrl-S, blocks a writer. This must not delay a renewal, so a thread of its own writes
//! the lines. If too many lines are queued, new ones are dropped.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

use crate::args::Output;
use crate::event::{Event, Weight};
use crate::exit::Failure;
use crate::format::json_line;
use crate::progress::Progress;

/// How many lines may be queued.
const BACKLOG: usize = 1_000;
/// How long the end waits until they are written.
const FLUSH: Duration = Duration::from_millis(500);

/// Reports events. Clones share one queue.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    lines: SyncSender<Order>,
    most: Weight,
    json: bool,
    colours: bool,
    /// Whether to show progress.
    shows_progress: bool,
}

#[derive(Debug)]
enum Order {
    Write(String),
    Progress(Option<(usize, usize, String)>),
    Flush(SyncSender<()>),
}

impl Report {
    pub(crate) fn start(output: &Output) -> Report {
        let choice = AutoStream::choice(&stderr());
        let (lines, orders) = sync_channel(BACKLOG);
        // Without the thread nothing is reported; the tool works all the same.
        let _ = thread::Builder::new()
            .name("report".into())
            .spawn(move || write(&orders, choice));
        let most = match (output.quiet, output.verbose) {
            (true, _) => Weight::Error,
            // A program that asks for events wants to know when the lock was acquired.
            (false, 0) if output.json => Weight::Detail,
            (false, 0) => Weight::Notice,
            (false, 1) if !output.json => Weight::Detail,
            (false, _) => Weight::Trifle,
        };
        Report {
            lines,
            most,
            json: output.json,
            colours: choice != ColorChoice::Never,
            shows_progress: stderr().is_terminal() && !output.json && !output.quiet,
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn event(&self, event: &Event<'_>) {
        if event.weight() <= self.most {
            self.print(event);
        }
    }

    pub(crate) fn print(&self, event: &Event<'_>) {
        let text = if self.json {
            json_line(event.json())
        } else {
            let name = self.style(event.weight());
            let line =
                |line: String| format!("{name}quorlock:{name:#} {}\n", escape_control_characters(&line));
            event.lines().into_iter().map(line).collect()
        };
        let _ = self.lines.try_send(Order::Write(text));
    }

    /// Shows the current part, the number of parts, and the part's name. `None` hides the progress.
    pub(crate) fn progress(&self, progress: Option<(usize, usize, &str)>) {
        if self.shows_progress {
            let progress = progress.map(|(part, parts, what)| (part, parts, what.to_owned()));
            let _ = self.lines.try_send(Order::Progress(progress));
        }
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        self.event(&Event::Failure {
            code: failure.code,
            message: &failure.message,
            details: &failure.details,
        });
    }

    /// Waits until all lines are written, for [`FLUSH`] at most.
    pub(crate) fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(Order::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH);
        }
    }

    fn style(&self, weight: Weight) -> Style {
        match weight {
            _ if !self.colours => Style::new(),
            Weight::Error => AnsiColor::Red.on_default().bold(),
            Weight::Warning => AnsiColor::Yellow.on_default().bold(),
            Weight::Notice => Style::new().bold(),
            Weight::Detail | Weight::Trifle => Style::new().dimmed(),
        }
    }
}

/// Escapes control characters, which a terminal would act on, and those that change the direction of text, which would hide or reorder
/// what follows: names of locks and messages of servers may contain them.
pub(crate) fn escape_control_characters(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for character in line.chars() {
        let turns = matches!(character, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || turns {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

fn write(orders: &Receiver<Order>, choice: ColorChoice) {
    // With `stty tostop`, writing from the background would stop this process (TTOU).
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let mut out = AutoStream::new(stderr(), choice);
    let mut progress = Progress::default();
    for order in orders {
        match order {
            Order::Write(text) => progress.aside(|| {
                let _ = out.write_all(text.as_bytes()); // a failure cannot be reported
            }),
            Order::Progress(to) => progress.show(to),
            Order::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_move_the_cursor_or_turn_the_text_around() {
        assert_eq!(escape_control_characters("a\u{1b}[2J"), "a\\u{1b}[2J");
        assert_eq!(
            escape_control_characters("a\u{202e}b\u{2066}"),
            "a\\u{202e}b\\u{2066}"
        );
        assert_eq!(escape_control_characters("nächtlich 錠"), "nächtlich 錠");
    }
}
