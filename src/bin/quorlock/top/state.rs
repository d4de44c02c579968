//! The state of `quorlock top`: a survey, and the choices of the person in front of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorlock::Inspection;
use quorlock::node::OwnerToken;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::fit;
use crate::report::escape_control_characters;
use crate::survey::Survey;

/// How many surveys the latencies are shown of.
pub(super) const HISTORY: usize = 40;

#[derive(Default)]
pub(super) struct State {
    pub(super) survey: Option<Arc<Survey>>,
    /// How long a write took in the last surveys, by node. `None` if it failed.
    pub(super) writes: BTreeMap<String, VecDeque<Option<Duration>>>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) message: Option<String>,
    /// How many columns the last lines have.
    pub(super) room: usize,
    /// The selected lock's name: it stays selected although the list changes.
    selected: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Longest first.
    #[default]
    Held,
    Name,
    /// Soonest first.
    Expiry,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Browse,
    /// The filter is being typed.
    Filter,
    /// Asks whether to break this lock of this owner, which was shown.
    Confirm(Arc<str>, OwnerToken),
}

/// The consequence of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    Quit,
    Break(Arc<str>, OwnerToken),
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Held => "longest held",
            Sort::Name => "name",
            Sort::Expiry => "soonest expiry",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Held => Sort::Name,
            Sort::Name => Sort::Expiry,
            Sort::Expiry => Sort::Held,
        }
    }
}

impl State {
    pub(super) fn show(&mut self, survey: Arc<Survey>) {
        for node in survey.nodes.iter() {
            let writes = self.writes.entry(node.node.clone()).or_default();
            if writes.len() == HISTORY {
                writes.pop_front();
            }
            writes.push_back(node.write);
        }
        let place = self.selected();
        self.survey = Some(survey);
        // A lock that is gone yields its place to the next one.
        let locks = self.locks();
        let is_gone = |name: &Arc<str>| locks.iter().all(|lock| lock.resource != *name);
        if let (Some(place), true) = (place, self.selected.as_ref().is_some_and(is_gone)) {
            let next = locks.get(place.min(locks.len().saturating_sub(1)));
            self.selected = next.map(|lock| lock.resource.clone());
        }
    }

    pub(super) fn say(&mut self, message: String) {
        self.message = Some(message);
    }

    /// Returns the locks that pass the filter, in order.
    pub(super) fn locks(&self) -> Vec<&Inspection> {
        let all = self.survey.iter().flat_map(|survey| &survey.locks.shown);
        let mut locks: Vec<&Inspection> = all.filter(|lock| self.passes(lock)).collect();
        locks.sort_by(|a, b| match self.sort {
            Sort::Held => since(a).cmp(&since(b)).then_with(|| a.resource.cmp(&b.resource)),
            Sort::Name => a.resource.cmp(&b.resource),
            // Locks that never expire come first: they need a look.
            Sort::Expiry => a
                .remaining()
                .cmp(&b.remaining())
                .then_with(|| a.resource.cmp(&b.resource)),
        });
        locks
    }

    /// Returns whether the lock's name, or its holder's, contains the filter.
    fn passes(&self, lock: &Inspection) -> bool {
        let holder = lock.holder.as_ref().map(|holder| holder.name());
        lock.resource.contains(&self.filter)
            || holder.is_some_and(|holder| holder.to_string().contains(&self.filter))
    }

    /// Returns the selected lock's place among the locks shown. `None` without locks.
    pub(super) fn selected(&self) -> Option<usize> {
        let locks = self.locks();
        let named = locks
            .iter()
            .position(|lock| Some(&lock.resource) == self.selected.as_ref());
        named.or((!locks.is_empty()).then_some(0))
    }

    fn select(&mut self, change: impl FnOnce(usize) -> usize) {
        let Some(selected) = self.selected() else { return };
        let locks = self.locks();
        let to = change(selected).min(locks.len() - 1);
        self.selected = Some(locks[to].resource.clone());
    }

    pub(super) fn take(&mut self, event: &Event) -> Act {
        match event {
            Event::Key(key) if key.kind == KeyEventKind::Press => self.key(*key),
            _ => Act::Nothing,
        }
    }

    fn key(&mut self, key: KeyEvent) -> Act {
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Act::Quit;
        }
        if key
            .modifiers
            .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
        {
            return Act::Nothing;
        }
        match std::mem::take(&mut self.mode) {
            Mode::Browse => return self.browse(key.code),
            Mode::Filter => match key.code {
                KeyCode::Enter => {}
                KeyCode::Esc => self.filter.clear(),
                code => {
                    self.mode = Mode::Filter;
                    match code {
                        KeyCode::Char(letter) => self.filter.push(letter),
                        KeyCode::Backspace => drop(self.filter.pop()),
                        _ => {}
                    }
                }
            },
            Mode::Confirm(lock, owner) => match key.code {
                KeyCode::Char('y' | 'Y') => return Act::Break(lock, owner),
                _ => self.say(format!("not broken: {lock}")),
            },
        }
        Act::Nothing
    }

    fn browse(&mut self, code: KeyCode) -> Act {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Act::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('b') => self.ask(),
            KeyCode::Up | KeyCode::Char('k') => self.select(|place| place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|place| place + 1),
            KeyCode::PageUp => self.select(|place| place.saturating_sub(10)),
            KeyCode::PageDown => self.select(|place| place + 10),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            _ => {}
        }
        Act::Nothing
    }

    /// Asks whether to break the selected lock. Only the owner that is shown now can lose it.
    fn ask(&mut self) {
        let locks = self.locks();
        let Some(lock) = self.selected().and_then(|place| locks.get(place)) else {
            return;
        };
        match (lock.resource.clone(), lock.owner()) {
            (lock, Some(_)) if fit::width(&question(&lock)) > self.room => {
                self.say("enlarge the window first: the lock's name does not fit".to_owned());
            }
            (lock, Some(owner)) => self.mode = Mode::Confirm(lock, owner),
            (lock, None) => self.say(format!("{lock} holds no owner token, so it is not deleted")),
        }
    }
}

pub(super) fn question(lock: &str) -> String {
    format!("[y/N] break {}?", escape_control_characters(lock))
}

/// Holds of unknown age come last.
fn since(lock: &Inspection) -> (bool, Option<SystemTime>) {
    let since = lock.holder.as_ref().map(|holder| holder.since);
    (since.is_none(), since)
}
