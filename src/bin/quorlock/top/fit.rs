//! Makes texts fit the screen.

use std::iter;

use ratatui::text::{Line, Span};

/// Returns how many columns the text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Replaces the middle of a text that is too wide: names differ at their ends.
pub(super) fn shorten(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let rest = columns.saturating_sub(1);
    let start = text.split_at(fitting(text, rest.div_ceil(2))).0;
    let end: String = text.chars().rev().collect();
    let end = end.split_at(fitting(&end, rest / 2)).0;
    let end = end.chars().rev();
    start.chars().chain(iter::once('…')).chain(end).collect()
}

/// Splits a text into lines that fit.
pub(super) fn wrap(mut text: &str, columns: usize) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    loop {
        let (line, rest) = text.split_at(fitting(text, columns));
        if rest.is_empty() || line.is_empty() {
            lines.push(Line::raw(text));
            return lines;
        }
        lines.push(Line::raw(line));
        text = rest;
    }
}

/// Returns how many bytes of the text fit.
fn fitting(text: &str, columns: usize) -> usize {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        used += width(character.encode_utf8(&mut [0; 4]));
        if used > columns {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_long_name_is_replaced() {
        assert_eq!(shorten("nightly", 7), "nightly");
        assert_eq!(shorten("invoices:2026:42", 9), "invo…6:42");
        assert_eq!(shorten("錠錠錠錠", 6), "錠…錠");
        assert_eq!(shorten("nightly", 0), "…");
    }

    #[test]
    fn a_long_text_becomes_several_lines() {
        let lines =
            |text, columns| -> Vec<String> { wrap(text, columns).iter().map(Line::to_string).collect() };
        assert_eq!(lines("break it?", 4), ["brea", "k it", "?"]);
        assert_eq!(lines("break it?", 9), ["break it?"]);
        assert_eq!(lines("錠錠錠", 5), ["錠錠", "錠"]);
        assert_eq!(lines("", 5), [""]);
        // No column is left: the screen cuts it.
        assert_eq!(lines("it", 0), ["it"]);
    }
}
