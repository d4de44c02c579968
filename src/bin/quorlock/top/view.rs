//! Draws the screen of `quorlock top`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use quorlock::Inspection;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::fit;
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
    let (columns, rows) = (usize::from(frame.area().width), usize::from(frame.area().height));
    let most = (rows / 2).max(1);
    let foot_words = foot_words(state, columns * most);
    let foot_lines = fit::wrap(&foot_words, columns);
    let foot_rows = u16::try_from(foot_lines.len().min(most)).unwrap_or(u16::MAX);
    // First the last lines, which ask: they are there on the smallest screen.
    let [body, foot] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(foot_rows)]).areas(frame.area());
    let asks = matches!(state.mode, Mode::Confirm(..));
    let foot_style = if asks { BAD } else { Style::new() };
    frame.render_widget(Paragraph::new(foot_lines).style(foot_style), foot);

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
    let names: Vec<&str> = survey.nodes.iter().map(|node| node.node.as_str()).collect();
    let widths = [
        Constraint::Length(longest(&names)),
        Constraint::Length(9),
        Constraint::Length(u16::try_from(HISTORY).unwrap_or(u16::MAX)),
        Constraint::Min(10),
    ];
    let heading = Row::new(["NODE", "WRITE", "", "STATE"]).style(HEADING);
    frame.render_widget(
        Table::new(survey.nodes.iter().map(row), widths).header(heading),
        node_area,
    );

    let locks = state.locks();
    let list_rows = usize::from(lock_area.height.saturating_sub(1));
    let mut words = survey.locks.words();
    let _ = match state.filter.as_str() {
        "" => Ok(()),
        filter if locks.is_empty() => write!(words, ", none with: {filter}"),
        filter => write!(words, ", with: {filter}"),
    };
    let _ = write!(words, ", by {}", state.sort.name());
    if survey.locks.may_show_more() {
        let _ = write!(words, ", the first {MOST_SHOWN} with keys");
    }
    if locks.len() > list_rows {
        let _ = write!(words, ", {list_rows} on the screen");
    }
    let words = escape_control_characters(&words);
    frame.render_widget(
        Paragraph::new(vec![Line::from(survey.locks.reasons()), Line::from(words)]),
        lock_head,
    );
    draw_locks(frame, lock_area, state, &locks, survey.at.elapsed());
}

/// `ago`: when the locks were looked at.
fn draw_locks(frame: &mut Frame<'_>, area: Rect, state: &State, locks: &[&Inspection], ago: Duration) {
    let names: Vec<String> = locks
        .iter()
        .map(|lock| escape_control_characters(&lock.resource))
        .collect();
    let holders: Vec<String> = locks.iter().map(|lock| holder_words(lock)).collect();
    // Between the columns is a blank.
    let room = area.width.saturating_sub(9 + 9 + 5 + 4);
    let (name_width, holder_width) = share(room, longest(&names), longest(&holders));
    let widths = [name_width, 9, 9, 5, holder_width].map(Constraint::Length);
    let rows = locks
        .iter()
        .zip(names.iter().zip(&holders))
        .map(|(lock, (name, holder))| {
            let held_for = lock.holder.as_ref().and_then(holder::age);
            Row::new([
                fit::shorten(name, name_width.into()),
                held_for.map_or_else(String::new, whole),
                expiry(lock, ago),
                format!("{}/{}", lock.keys(), lock.nodes.len()),
                fit::shorten(holder, holder_width.into()),
            ])
        });
    let heading = Row::new(["LOCK", "HELD FOR", "EXPIRES", "NODES", "HOLDER"]).style(HEADING);
    let table = Table::new(rows, widths)
        .header(heading)
        .row_highlight_style(SELECTED);
    let mut place = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table, area, &mut place);
}

/// Shares the room between two columns that want these widths. A column gets less than it wants only if both do not fit, and then at
/// least half of the room.
fn share(room: u16, first: u16, second: u16) -> (u16, u16) {
    let first = first.min(room.saturating_sub(second).max(room / 2));
    (first, room - first)
}

/// Returns what the last lines say, in `room` columns if possible.
fn foot_words(state: &State, room: usize) -> String {
    let words = match (&state.message, &state.mode) {
        (Some(message), _) => message.clone(),
        (None, Mode::Browse) => "q quit   ↑↓ select   s sort   / filter   b break".to_owned(),
        (None, Mode::Filter) => format!(
            "with: {}_   a part of a lock's or a holder's name; Enter keeps it, Esc clears it",
            state.filter
        ),
        (None, Mode::Confirm(lock, _)) => {
            let (before, after) = (
                "[y/N] break ",
                "? Its holder's work ends, or goes on without the lock if it hangs",
            );
            let name = escape_control_characters(lock);
            let name = fit::shorten(&name, room.saturating_sub(before.len() + after.len()));
            format!("{before}{name}{after}")
        }
    };
    escape_control_characters(&words)
}

fn style(is_good: bool) -> Style {
    if is_good { GOOD } else { BAD }
}

fn longest(texts: &[impl AsRef<str>]) -> u16 {
    let longest = texts.iter().map(|text| fit::width(text.as_ref())).max();
    u16::try_from(longest.unwrap_or_default().max(4)).unwrap_or(u16::MAX)
}

fn node_words(node: &status::Line) -> String {
    let mut words = node.words();
    if node.is_good() {
        for warning in &node.warnings {
            let _ = write!(words, "; {warning}");
        }
    }
    words
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
