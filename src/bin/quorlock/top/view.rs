//! Draws the screen of `quorlock top`.

use std::collections::VecDeque;
use std::time::Duration;

use quorlock::Inspection;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::state::{HISTORY, Mode, State};
use crate::format::{counted, tenths};
use crate::holder;
use crate::nodes::quorum;
use crate::report::escape_control_characters;
use crate::status::{self, Verdict};
use crate::survey::MOST_SHOWN;

const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red);
const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// From the shortest to the longest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let Some(survey) = &state.survey else {
        frame.render_widget(Paragraph::new("looking at the nodes ..."), frame.area());
        return;
    };
    let nodes = u16::try_from(survey.nodes.len()).unwrap_or(u16::MAX);
    // First the last line, which asks: it is there on the smallest screen.
    let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let [head, node_area, lock_head, lock_area] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(nodes.saturating_add(1)),
        Constraint::Length(2),
        Constraint::Min(2),
    ])
    .areas(body);

    let verdict = Verdict::of(&survey.nodes);
    let (count, needed) = (counted(survey.nodes.len(), "node"), quorum(survey.nodes.len()));
    let words = format!("quorlock: {} ({count}, {needed} needed)", verdict.words());
    frame.render_widget(Paragraph::new(words).style(style(verdict.is_quorum())), head);

    let slowest = state
        .writes
        .values()
        .flatten()
        .flatten()
        .max()
        .copied()
        .unwrap_or_default();
    let row = |node: &status::Line| {
        let writes = state.writes.get(&node.node);
        Row::new([
            Cell::new(node.node.clone()),
            Cell::new(node.write.map_or_else(String::new, tenths)),
            Cell::new(writes.map_or_else(String::new, |writes| bars(writes, slowest))),
            Cell::new(node_words(node)).style(style(node.is_good())),
        ])
    };
    let widths = [
        Constraint::Length(longest(survey.nodes.iter().map(|node| node.node.as_str()))),
        Constraint::Length(9),
        Constraint::Length(u16::try_from(HISTORY).unwrap_or(u16::MAX)),
        Constraint::Min(10),
    ];
    let heading = Row::new(["NODE", "WRITE", "", "STATE"]).style(HEADING);
    frame.render_widget(
        Table::new(survey.nodes.iter().map(row), widths).header(heading),
        node_area,
    );

    let shown = match survey.locks.are_cut() {
        true => format!(", {MOST_SHOWN} of them here"),
        false => String::new(),
    };
    let filter = match (&state.mode, state.filter.as_str()) {
        (Mode::Filter, filter) => format!(", with: {filter}_"),
        (_, "") => String::new(),
        (_, filter) => format!(", with: {filter}"),
    };
    let words = format!(
        "{}{shown}, by {}{filter}",
        survey.locks.words(),
        state.sort.name()
    );
    frame.render_widget(
        Paragraph::new(vec![Line::default(), Line::from(words)]),
        lock_head,
    );

    let locks = state.locks();
    let names: Vec<String> = locks
        .iter()
        .map(|lock| escape_control_characters(&lock.resource))
        .collect();
    let widths = [
        Constraint::Length(longest(names.iter().map(String::as_str)).min(40)),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(5),
        Constraint::Min(10),
    ];
    let rows = locks.iter().zip(&names).map(|(lock, name)| {
        let held_for = lock.holder.as_ref().and_then(holder::age);
        Row::new([
            name.clone(),
            held_for.map_or_else(String::new, whole),
            expiry(lock, survey.at.elapsed()),
            format!("{}/{}", lock.keys(), lock.nodes.len()),
            holder_words(lock),
        ])
    });
    let heading = Row::new(["LOCK", "HELD FOR", "EXPIRES", "NODES", "HOLDER"]).style(HEADING);
    let table = Table::new(rows, widths)
        .header(heading)
        .row_highlight_style(SELECTED);
    let mut place = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table, lock_area, &mut place);

    let words = match (&state.message, &state.mode) {
        (Some(message), _) => message.clone(),
        (None, Mode::Browse) => "q quit   s sort   / filter   b break".to_owned(),
        (None, Mode::Filter) => {
            "type a part of a lock's or a holder's name; Enter keeps it, Esc clears it".to_owned()
        }
        (None, Mode::Confirm(lock, _)) => {
            format!("[y/N] break {lock}? Its holder's work ends, or goes on without the lock if it hangs")
        }
    };
    let asks = matches!(state.mode, Mode::Confirm(..));
    let words = Paragraph::new(escape_control_characters(&words));
    frame.render_widget(words.style(if asks { BAD } else { Style::new() }), foot);
}

fn style(is_good: bool) -> Style {
    if is_good { GOOD } else { BAD }
}

fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> u16 {
    let longest = texts.map(|text| text.chars().count()).max().unwrap_or_default();
    u16::try_from(longest.max(4)).unwrap_or(u16::MAX)
}

fn node_words(node: &status::Line) -> String {
    match node.is_good() {
        true => [node.words()]
            .iter()
            .chain(&node.warnings)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("; "),
        false => node.words(),
    }
}

/// A bar for each write, the longest as high as `slowest`; a mark for one that failed.
fn bars(writes: &VecDeque<Option<Duration>>, slowest: Duration) -> String {
    let bar = |write: &Option<Duration>| match write {
        None => '!',
        Some(time) => {
            let share = time.as_secs_f64() / slowest.as_secs_f64().max(f64::MIN_POSITIVE);
            BARS[((share * 8.0) as usize).min(BARS.len() - 1)]
        }
    };
    writes.iter().map(bar).collect()
}

/// To the second: clocks of machines differ, and locks change faster than they are read.
fn whole(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

/// `ago`: when the lock was looked at.
fn expiry(lock: &Inspection, ago: Duration) -> String {
    match lock.remaining() {
        Some(left) => whole(left.saturating_sub(ago)),
        None => "never".to_owned(),
    }
}

fn holder_words(lock: &Inspection) -> String {
    match &lock.holder {
        Some(holder) => escape_control_characters(&holder.name().to_string()),
        None => lock.status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_how_long_writes_took() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let writes = VecDeque::from([ms(0), ms(4), None, ms(8)]);
        assert_eq!(bars(&writes, Duration::from_millis(8)), "▁▅!█");
        assert_eq!(bars(&VecDeque::from([ms(0)]), Duration::ZERO), "▁");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(whole(Duration::from_millis(61_900)), "1m 1s");
        assert_eq!(whole(Duration::from_millis(900)), "0s");
    }
}
