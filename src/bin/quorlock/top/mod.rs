//! `quorlock top`: shows nodes and locks continuously.
//!
//! `state.rs` is what is shown and chosen, `view.rs` draws it, `keyboard.rs` reads keys.

mod keyboard;
mod state;
mod view;

use std::fmt::Write as _;
use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::time::Duration;

use ratatui::DefaultTerminal;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::args::Top;
use crate::break_lock::Outcome;
use crate::end::End;
use crate::exit::{self, Failure};
use crate::format::counted;
use crate::report::{Report, escape_control_characters};
use crate::signals::{self, Signals};
use crate::status::{self, Verdict};
use crate::survey::{MOST_SHOWN, Survey, Surveyor};
use crate::{holder, locking, out};
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
    if report.is_json() || !stdin().is_terminal() || !stdout().is_terminal() {
        let survey = match heard.or(surveyor.survey()).await {
            Ok(survey) => survey,
            Err(_) => return Ok(End::Code(exit::OK)),
        };
        out::print(report, || document(&survey), || text(&survey))?;
        return Ok(End::Code(exit::OK));
    }
    // What is printed later would disturb the screen.
    report.flush();
    let shown = match ratatui::try_init() {
        Ok(terminal) => show(terminal, surveyor, arguments.every, &mut heard).await,
        Err(error) => Err(error),
    };
    ratatui::restore();
    shown.map_err(|error| Failure::system("use the terminal", &error))
}

/// Shows surveys until a key or a signal ends it.
async fn show(
    mut terminal: DefaultTerminal,
    surveyor: Arc<Surveyor>,
    every: Duration,
    heard: &mut Signals,
) -> std::io::Result<End> {
    let mut keys = keyboard::read()?;
    let mut state = State::default();
    let mut redraw = interval_at(Instant::now(), REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut surveys = Surveys::start(surveyor.clone(), every);
    loop {
        terminal.draw(|frame| view::draw(frame, &mut state))?;
        tokio::select! {
            _ = redraw.tick() => {}
            survey = surveys.next() => state.show(survey?),
            _ = heard.next() => return Ok(End::Code(exit::OK)),
            event = keys.recv() => match event.map(|event| state.take(&event)) {
                // The terminal is gone.
                None | Some(Act::Quit) => return Ok(End::Code(exit::OK)),
                Some(Act::Nothing) => {}
                Some(Act::Break(lock, owner)) => {
                    terminal.draw(|frame| view::draw(frame, &mut state))?;
                    let words = match surveyor.redlock().break_lock(&*lock, owner).await {
                        Ok(votes) => Outcome::of(&votes).words(&votes),
                        Err(error) => error.to_string(),
                    };
                    state.say(format!("{words}: {lock}"));
                }
            },
        }
    }
}

/// Surveys, made by a task of its own: keys are answered meanwhile.
struct Surveys {
    made: tokio::sync::mpsc::Receiver<Arc<Survey>>,
}

impl Surveys {
    /// Makes a survey at once, and then one each time that `every` has passed since.
    fn start(surveyor: Arc<Surveyor>, every: Duration) -> Surveys {
        let (tell, made) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            while tell.send(Arc::new(surveyor.survey().await)).await.is_ok() {
                tokio::time::sleep(every).await;
            }
        });
        Surveys { made }
    }

    /// Cancel safe.
    async fn next(&mut self) -> std::io::Result<Arc<Survey>> {
        let ended = || std::io::Error::other("the nodes are no longer looked at");
        self.made.recv().await.ok_or_else(ended)
    }
}

fn document(survey: &Survey) -> Value {
    let locks: Vec<Value> = survey.locks.shown.iter().map(holder::lock_document).collect();
    json!({
        "status": status::document(&survey.nodes, &Verdict::of(&survey.nodes)),
        "held": survey.locks.held, "is_partial": survey.locks.is_partial, "locks": locks,
    })
}

fn text(survey: &Survey) -> String {
    let mut text = status::text(&survey.nodes, &Verdict::of(&survey.nodes));
    let partial = if survey.locks.is_partial { " at least" } else { "" };
    let _ = writeln!(text, "{} held{partial}", counted(survey.locks.held, "lock"));
    for lock in &survey.locks.shown {
        let line = format!("{}: {}", lock.resource, holder::line(lock));
        let _ = writeln!(text, "{}", escape_control_characters(&line));
    }
    if survey.locks.shown.len() == MOST_SHOWN {
        let _ = writeln!(
            text,
            "these are the first {MOST_SHOWN}: `quorlock locks` lists all"
        );
    }
    text
}
