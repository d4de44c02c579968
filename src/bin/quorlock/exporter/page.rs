//! A survey as a page for people, also on a phone. It needs no scripts, and loads nothing.

use std::fmt::Write as _;
use std::time::SystemTime;

use quorlock::{Finding, Inspection};

use crate::format::{counted, tenths, utc};
use crate::holder;
use crate::nodes::quorum;
use crate::report::escape_control_characters;
use crate::status::{Line, Verdict};
use crate::survey::{Findings, MOST_SHOWN, Survey};

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta http-equiv=\"refresh\" content=\"15\"><title>quorlock</title>
<style>
:root { color-scheme: light dark; --good: #0a7d33; --bad: #c21f1f; --line: #8885; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.5rem 0 .4rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
ul { list-style: none; margin: 0; padding: 0; }
li { border-top: 1px solid var(--line); padding: .45rem 0; overflow-wrap: anywhere; }
small { opacity: .75; }
@media (prefers-color-scheme: dark) { :root { --good: #52d07f; --bad: #ff7b72; } }
</style></head><body>
";

pub(super) fn html(survey: &Survey) -> String {
    let verdict = Verdict::of(&survey.nodes);
    let mut page = HEAD.to_owned();
    let _ = writeln!(
        page,
        "<h1>quorlock: <span class=\"{}\">{}</span></h1>\n<p><small>{}, {} needed; {}</small></p>",
        class(verdict.is_quorum()),
        escaped(&verdict.words()),
        counted(survey.nodes.len(), "node"),
        quorum(survey.nodes.len()),
        utc(SystemTime::now()),
    );
    list(&mut page, "Nodes", survey.nodes.iter().map(node));
    match survey.findings.as_deref() {
        None => paragraph(&mut page, "Findings", "not looked for yet"),
        Some(Findings { at, found }) => {
            let heading = format!("Findings at {}", utc(*at));
            match found {
                Ok(found) => list(&mut page, &heading, found.findings.iter().map(finding)),
                Err(error) => paragraph(&mut page, &heading, error),
            }
        }
    }
    let locks = survey.locks_now();
    match survey.knows_locks() || !locks.is_empty() {
        true => list(&mut page, &survey.locks_in_words(), locks.iter().map(lock)),
        false => paragraph(&mut page, "Locks", &survey.locks_in_words()),
    }
    if !survey.locks.unread.is_empty() {
        let unread = escaped(&survey.unread_in_words());
        let _ = writeln!(page, "<p><small>{unread}</small></p>");
    }
    if survey.locks.has_more {
        let _ = writeln!(
            page,
            "<p><small>The first {MOST_SHOWN}: <code>quorlock locks</code> lists all.</small></p>"
        );
    }
    page.push_str("</body></html>\n");
    page
}

/// Writes a list under a heading. An empty one says so.
fn list(page: &mut String, heading: &str, items: impl Iterator<Item = String>) {
    let _ = writeln!(page, "<h2>{heading}</h2>\n<ul>");
    let mut items = items.peekable();
    if items.peek().is_none() {
        page.push_str("<li><small>none</small></li>\n");
    }
    for item in items {
        let _ = writeln!(page, "<li>{item}</li>");
    }
    page.push_str("</ul>\n");
}

fn paragraph(page: &mut String, heading: &str, text: &str) {
    let _ = writeln!(
        page,
        "<h2>{heading}</h2>\n<p><small>{}</small></p>",
        escaped(text)
    );
}

fn finding(finding: &Finding) -> String {
    let node = finding.node.as_deref().unwrap_or("the set of nodes");
    format!(
        "<b>{}</b>: {}: {}<br><small>{}</small>",
        finding.severity.name(),
        escaped(node),
        escaped(&finding.seen),
        escaped(&finding.advice)
    )
}

fn node(line: &Line) -> String {
    let write = line
        .write
        .map(|time| format!(" <small>a write takes {}</small>", tenths(time)));
    let warnings: String = line
        .warnings
        .iter()
        .map(|warning| format!("<br><small>{}</small>", escaped(warning)))
        .collect();
    format!(
        "<b>{}</b>: <span class=\"{}\">{}</span>{}{warnings}",
        escaped(&line.node),
        class(line.is_good()),
        escaped(&line.words()),
        write.unwrap_or_default(),
    )
}

fn lock(lock: &Inspection) -> String {
    format!(
        "<b>{}</b>: {}",
        escaped(&lock.resource),
        escaped(&holder::line(lock))
    )
}

fn class(is_good: bool) -> &'static str {
    if is_good { "good" } else { "bad" }
}

fn escaped(text: &str) -> String {
    escape_control_characters(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
