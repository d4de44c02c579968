//! Draws the screen of `quorlock top`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use quorlock::Inspection;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect, Size};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::fit;
use super::state::{HISTORY, Mode, State, question};
use crate::format::{counted, tenths};
use crate::holder;
use crate::nodes::quorum;
use crate::report::escape_control_characters;
use crate::status::{self, Verdict};
use crate::survey::{MOST_SHOWN, Survey};

const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red);
const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// How many writes have bars, if the screen is wide enough, and if it is not.
const MOST_BARS: u16 = HISTORY as u16;
const FEWEST_BARS: u16 = 8;
/// How many lines say why nodes were not read.
const MOST_REASONS: usize = 3;
/// From the shortest to the longest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let Some(survey) = &state.survey else {
        frame.render_widget(
            Paragraph::new("connecting to the nodes, and looking at them ...   q quit"),
            frame.area(),
        );
        return;
    };
    let nodes = u16::try_from(survey.nodes.len()).unwrap_or(u16::MAX);
    let (area, columns) = (frame.area(), usize::from(frame.area().width));
    let foot_words = foot_words(state);
    let foot_lines = fit::wrap(&foot_words, columns);
    let most = foot_most_rows(area.as_size());
    let foot_rows = u16::try_from(foot_lines.len().min(most)).unwrap_or(u16::MAX);
    // First the last lines, which ask: they are there on the smallest screen.
    let [body, foot] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(foot_rows)]).areas(frame.area());
    let asks = matches!(state.mode, Mode::Confirm(..));
    let foot_style = if asks { BAD } else { Style::new() };
    frame.render_widget(Paragraph::new(foot_lines).style(foot_style), foot);

    let verdict = Verdict::of(&survey.nodes);
    let (count, needed) = (counted(survey.nodes.len(), "node"), quorum(survey.nodes.len()));
    let words = format!("quorlock: {} ({count}, {needed} needed)", verdict.words());
    let head_lines = fit::wrap(&words, columns);
    let unread = escape_control_characters(&survey.unread_in_words());
    let mut lock_lines = fit::wrap(&unread, columns);
    lock_lines.truncate(MOST_REASONS);
    let locks = state.locks();
    let lock_words = lock_words(survey, state, locks.len());
    lock_lines.extend(fit::wrap(&lock_words, columns));
    let length = |lines: &Vec<_>| Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let [head, node_area, lock_head, lock_area] = Layout::vertical([
        length(&head_lines),
        Constraint::Length(nodes.saturating_add(1)),
        length(&lock_lines),
        Constraint::Min(2),
    ])
    .areas(body);
    let head_style = style(verdict.is_quorum());
    frame.render_widget(Paragraph::new(head_lines).style(head_style), head);
    draw_nodes(frame, node_area, survey, state);
    let rows = usize::from(lock_area.height.saturating_sub(1));
    if let (true, Some(last)) = (locks.len() > rows, lock_lines.last_mut()) {
        last.push_span(format!(", {rows} on the screen"));
    }
    frame.render_widget(Paragraph::new(lock_lines), lock_head);
    draw_locks(frame, lock_area, state, &locks, survey.at.elapsed());
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, survey: &Survey, state: &State) {
    let slowest = state.writes.values().flatten().flatten().max();
    let slowest = slowest.copied().unwrap_or_default();
    let names: Vec<&str> = survey.nodes.iter().map(|node| node.node.as_str()).collect();
    let words: Vec<String> = survey.nodes.iter().map(node_words).collect();
    let name_width = longest(&names).min(area.width / 2);
    // Between the columns is a blank.
    let room = area.width.saturating_sub(name_width + 9 + 3);
    let word_width = longest(&words).min(room.saturating_sub(FEWEST_BARS));
    let bar_width = (room - word_width).min(MOST_BARS);
    let row = |(node, words): (&status::Line, &String)| {
        let writes = state.writes.get(&node.node);
        Row::new([
            Cell::new(fit::shorten(&node.node, name_width.into())),
            Cell::new(node.write.map_or_else(String::new, tenths)),
            Cell::new(writes.map_or_else(String::new, |writes| bars(writes, slowest, bar_width.into()))),
            Cell::new(words.clone()).style(style(node.is_good())),
        ])
    };
    let widths = [name_width, 9, bar_width, room - bar_width].map(Constraint::Length);
    let heading = Row::new(["NODE", "WRITE", "", "STATE"]).style(HEADING);
    let rows = survey.nodes.iter().zip(&words).map(row);
    frame.render_widget(Table::new(rows, widths).header(heading), area);
}

/// Returns what is listed, in words.
fn lock_words(survey: &Survey, state: &State, count: usize) -> String {
    let mut words = survey.locks_in_words();
    let _ = match state.filter.as_str() {
        "" => Ok(()),
        filter if count == 0 => write!(words, ", none with: {filter}"),
        filter => write!(words, ", with: {filter}"),
    };
    let _ = write!(words, ", by {}", state.sort.name());
    if survey.locks.has_more {
        let _ = write!(words, ", the first {MOST_SHOWN} with keys");
    }
    escape_control_characters(&words)
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

/// Returns how many columns the last lines have together.
pub(super) fn foot_room(size: Size) -> usize {
    usize::from(size.width) * foot_most_rows(size)
}

fn foot_most_rows(size: Size) -> usize {
    usize::from(size.height / 2).max(1)
}

/// Returns what the last lines say. The most important words come first: on a small screen, the end is cut off.
fn foot_words(state: &State) -> String {
    let words = match (&state.message, &state.mode) {
        (Some(message), _) => message.clone(),
        (None, Mode::Browse) => "q quit   ↑↓ select   s sort   / filter   b break".to_owned(),
        (None, Mode::Filter) => format!(
            "with: {}_   a part of a lock's or a holder's name; Enter keeps it, Esc clears it",
            state.filter
        ),
        (None, Mode::Confirm(lock, _)) => {
            let consequence = " Its holder's work ends, or goes on without the lock if it hangs";
            question(lock) + consequence
        }
    };
    escape_control_characters(&words)
}

fn style(is_good: bool) -> Style {
    if is_good { GOOD } else { BAD }
}

fn longest(texts: &[impl AsRef<str>]) -> u16 {
    let longest = texts.iter().map(|text| fit::width(text.as_ref())).max();
    u16::try_from(longest.unwrap_or_default().max(5)).unwrap_or(u16::MAX)
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

/// A bar for each of the last writes, the longest as high as `slowest`; a mark for one that failed.
fn bars(writes: &VecDeque<Option<Duration>>, slowest: Duration, most: usize) -> String {
    let bar = |write: &Option<Duration>| match write {
        None => '!',
        Some(time) => {
            let share = time.as_secs_f64() / slowest.as_secs_f64().max(f64::MIN_POSITIVE);
            BARS[((share * 8.0) as usize).min(BARS.len() - 1)]
        }
    };
    let first = writes.len().saturating_sub(most);
    writes.iter().skip(first).map(bar).collect()
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
        assert_eq!(bars(&writes, Duration::from_millis(8), 40), "▁▅!█");
        assert_eq!(bars(&writes, Duration::from_millis(8), 2), "!█");
        assert_eq!(bars(&VecDeque::from([ms(0)]), Duration::ZERO, 40), "▁");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(whole(Duration::from_millis(61_900)), "1m 1s");
        assert_eq!(whole(Duration::from_millis(900)), "0s");
    }
}
