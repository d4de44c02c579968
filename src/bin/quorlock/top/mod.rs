//! `quorlock top`: shows nodes and locks continuously.
//!
//! `state.rs` has the survey and the user's choices, `view.rs` draws it, `fit.rs` makes texts fit, `keyboard.rs` reads keys.

mod fit;
mod keyboard;
mod state;
mod view;

use std::fmt::Write as _;
use std::io::{self, Error, IsTerminal, stdin, stdout};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use ratatui::DefaultTerminal;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::args::Top;
use crate::break_lock::Outcome;
use crate::end::End;
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::signals::{self, Signals};
use crate::status::{self, Verdict};
use crate::survey::{MOST_SHOWN, Survey, Surveyor};
use crate::{holder, locking, locks, out};
use state::{Act, State};

/// How often the screen is drawn anew without a key or a survey, so that times go on.
const REDRAW: Duration = Duration::from_secs(1);

pub(crate) async fn top(arguments: Top, report: &Report) -> Result<End, Failure> {
    let mut heard = Signals::listen(&signals::END)?;
    locking::check_window(&arguments.times, true, report);
    let start = Surveyor::start(&arguments.existing, &arguments.times, arguments.every);
    let surveyor = match heard.or(start).await {
        Ok(surveyor) => surveyor?,
        Err(_) => return Ok(End::Code(exit::OK)),
    };
    if !has_screen(report) {
        let survey = match heard.or(surveyor.survey()).await {
            Ok(survey) => survey,
            Err(_) => return Ok(End::Code(exit::OK)),
        };
        out::print(report, || document(&survey), || text(&survey))?;
        return Ok(End::Code(exit::OK));
    }
    // A warning that is printed later would disturb the screen.
    report.flush();
    let shown = match ratatui::try_init() {
        Ok(terminal) => {
            // Dropping it prints an error if the cursor cannot be shown. That print panics if the terminal is gone.
            let mut terminal = ManuallyDrop::new(terminal);
            let shown = show(&mut terminal, surveyor, arguments.every, &mut heard).await;
            let _ = terminal.show_cursor();
            shown
        }
        Err(error) => Err(error),
    };
    // The first error is reported, not this one.
    let _ = ratatui::try_restore();
    shown.map_err(|error| Failure::system("use the terminal", &error))
}

/// Returns whether `top` draws on a terminal, instead of printing.
pub(crate) fn has_screen(report: &Report) -> bool {
    !report.is_json() && stdin().is_terminal() && stdout().is_terminal()
}

/// Shows surveys until a key or a signal ends it.
async fn show(
    terminal: &mut DefaultTerminal,
    surveyor: Arc<Surveyor>,
    every: Duration,
    heard: &mut Signals,
) -> io::Result<End> {
    let mut keys = keyboard::read()?;
    let mut state = State::default();
    let mut redraw = interval_at(Instant::now(), REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut surveys = make_surveys(surveyor.clone(), every);
    loop {
        terminal.draw(|frame| view::draw(frame, &state))?;
        tokio::select! {
            _ = redraw.tick() => {}
            survey = surveys.recv() => match survey {
                Some(survey) => state.show(survey),
                None => return Err(Error::other("the nodes are no longer looked at")),
            },
            _ = heard.next() => return Ok(End::Code(exit::OK)),
            event = keys.recv() => {
                let Some(event) = event else {
                    return Err(Error::other("keys can no longer be read"));
                };
                state.room = view::foot_room(terminal.size()?);
                match state.take(&event) {
                Act::Quit => return Ok(End::Code(exit::OK)),
                Act::Nothing => {}
                Act::Break(lock, owner) => {
                    state.say(format!("breaking: {lock}"));
                    terminal.draw(|frame| view::draw(frame, &state))?;
                    let words = match surveyor.redlock().break_lock(&*lock, owner).await {
                        Ok(votes) => Outcome::of(&votes).words(&votes),
                        Err(error) => error.to_string(),
                    };
                    state.say(format!("{words}: {lock}"));
                }
            }},
        }
    }
}

/// Makes a survey at once, and then one each time that `every` has passed since. In a task of its own: keys are answered meanwhile.
fn make_surveys(surveyor: Arc<Surveyor>, every: Duration) -> Receiver<Arc<Survey>> {
    let (tell, surveys) = channel(1);
    tokio::spawn(async move {
        while tell.send(Arc::new(surveyor.survey().await)).await.is_ok() {
            sleep(every).await;
        }
    });
    surveys
}

fn document(survey: &Survey) -> Value {
    let locks: Vec<Value> = survey.locks_now().iter().map(holder::lock_document).collect();
    let known = survey.knows_locks();
    let unread = survey.unread().into_iter();
    let unread: Vec<Value> = unread
        .map(|(node, why)| json!({"node": node, "trouble": why}))
        .collect();
    json!({
        "status": status::document(&survey.nodes, &Verdict::of(&survey.nodes)),
        "held": known.then_some(survey.locks.held), "uncertain": known.then_some(survey.locks.uncertain),
        "unread_nodes": unread, "is_cut": survey.locks.is_cut, "locks": locks,
        "has_more": survey.locks.has_more,
    })
}

fn text(survey: &Survey) -> String {
    let mut text = status::text(&survey.nodes, &Verdict::of(&survey.nodes));
    let _ = writeln!(text, "{}", survey.locks_in_words());
    let unread = survey.unread_in_words();
    if !unread.is_empty() {
        let _ = writeln!(text, "{unread}");
    }
    text.extend(survey.locks_now().iter().map(locks::line));
    if survey.locks.has_more {
        let _ = writeln!(
            text,
            "these are the first {MOST_SHOWN}: `quorlock locks` lists all"
        );
    }
    text
}
