//! `quorlock top`: shows nodes and locks continuously.
//!
//! `state.rs` has the survey and the user's choices, `view.rs` draws it, `fit.rs` makes texts fit, `keyboard.rs` reads keys.

mod fit;
mod keyboard;
mod state;
mod view;

use std::fmt::Write as _;
use std::future::pending;
use std::io::{Error, IsTerminal, stdin, stdout};
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use quorlock::node::OwnerToken;
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
    if !has_screen(report) {
        let looked = async { Ok(start(&arguments).await?.survey().await) };
        let survey = match heard.or(looked).await {
            Ok(survey) => survey?,
            Err(_) => return Ok(End::Code(exit::OK)),
        };
        out::print(report, || document(&survey), || text(&survey))?;
        return Ok(End::Code(exit::OK));
    }
    // A warning that is printed later would disturb the screen.
    report.flush();
    let shown = match ratatui::try_init() {
        Ok(terminal) => {
            // A `Terminal` that is dropped prints an error if the cursor cannot be shown, and printing panics if the terminal is gone.
            let mut terminal = ManuallyDrop::new(terminal);
            let shown = show(&mut terminal, &arguments, &mut heard).await;
            let _ = terminal.show_cursor();
            shown
        }
        Err(error) => Err(unusable(error)),
    };
    // The first error is reported, not this one.
    let _ = ratatui::try_restore();
    shown
}

fn unusable(error: Error) -> Failure {
    Failure::system("use the terminal", &error)
}

async fn start(arguments: &Top) -> Result<Arc<Surveyor>, Failure> {
    Surveyor::start(&arguments.existing, &arguments.times, arguments.every).await
}

/// Returns whether `top` draws on a terminal, instead of printing.
pub(crate) fn has_screen(report: &Report) -> bool {
    !report.is_json() && stdin().is_terminal() && stdout().is_terminal()
}

/// Shows surveys until a key or a signal ends it.
async fn show(terminal: &mut DefaultTerminal, arguments: &Top, heard: &mut Signals) -> Result<End, Failure> {
    let mut keys = keyboard::read().map_err(unusable)?;
    let mut state = State::default();
    let mut redraw = interval_at(Instant::now(), REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut starting = pin!(start(arguments).fuse());
    // Both once the nodes are connected to.
    let (mut surveyor, mut surveys) = (None, None);
    let mut breaking = None;
    loop {
        terminal
            .draw(|frame| view::draw(frame, &state))
            .map_err(unusable)?;
        tokio::select! {
            _ = redraw.tick() => {}
            started = &mut starting => {
                let started = started?;
                surveys = Some(make_surveys(started.clone(), arguments.every));
                surveyor = Some(started);
            }
            survey = next(&mut surveys) => match survey {
                Some(survey) => state.show(survey),
                None => return Err(unusable(Error::other("the nodes are no longer looked at"))),
            },
            outcome = done(&mut breaking) => {
                breaking = None;
                state.say(outcome);
            }
            _ = heard.next() => return Ok(End::Code(exit::OK)),
            event = keys.recv() => {
                let Some(event) = event else {
                    return Err(unusable(Error::other("keys can no longer be read")));
                };
                state.room = view::foot_room(terminal.size().map_err(unusable)?);
                match (state.take(&event), &surveyor) {
                    (Act::Quit, _) => return Ok(End::Code(exit::OK)),
                    (Act::Break(lock, owner), Some(surveyor)) => {
                        state.say(format!("breaking: {lock}"));
                        breaking = Some(break_lock(surveyor.clone(), lock, owner).boxed());
                    }
                    _ => {}
                }
            }
        }
    }
}

async fn next(surveys: &mut Option<Receiver<Arc<Survey>>>) -> Option<Arc<Survey>> {
    match surveys {
        Some(surveys) => surveys.recv().await,
        None => pending().await,
    }
}

async fn done<T>(work: &mut Option<BoxFuture<'_, T>>) -> T {
    match work {
        Some(work) => work.await,
        None => pending().await,
    }
}

/// Returns the outcome in words.
async fn break_lock(surveyor: Arc<Surveyor>, lock: Arc<str>, owner: OwnerToken) -> String {
    let words = match surveyor.redlock().break_lock(&*lock, owner).await {
        Ok(votes) => Outcome::of(&votes).words(&votes),
        Err(error) => error.to_string(),
    };
    format!("{words}: {lock}")
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
    let unread = survey.locks.unread.iter();
    let unread: Vec<Value> = unread
        .map(|(node, why)| json!({"node": &**node, "trouble": why}))
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
    if !survey.locks.unread.is_empty() {
        let _ = writeln!(text, "{}", survey.unread_in_words());
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
