//! The shape of the code: the decisions stay pure, and imports point down.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// What the decisions must not know of: runtimes, client libraries, clocks, chance, the network.
const IMPURE: [&str; 14] = [
    "tokio",
    "fred",
    "futures_util",
    "tracing",
    "std::time::Instant",
    "SystemTime",
    "Instant",
    "rand",
    "fastrand",
    "uuid",
    "std::net",
    "std::thread",
    "std::env",
    "async",
];

/// Top to bottom: a module imports only what is below it. Those in one row may know each other.
const LAYERS: [&[&str]; 15] = [
    &["builder", "redlock"],
    &["acquire"],
    &["lease"],
    &["waiting"],
    &["keys"],
    &["round"],
    &["context"],
    &["error"],
    &["votes"],
    &["redis"],
    &["options"],
    &["node"],
    &["fence_gate"],
    &["sys"],
    &["protocol"],
];

/// Modules that stand beside: they import nothing of the crate, and nothing of the crate imports them.
const ASIDE: [&str; 2] = ["docs", "testbed"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The code without comments. A `//` in a string ends the line too early, which finds at most too little of that line.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether `word` stands in `code` as a word or path of its own.
fn names(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// The modules of the crate that are named: `crate::a::b`, and each of `crate::{a, b::c}`.
fn modules(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, start) in code.match_indices("crate::") {
        let rest = &code[at + start.len()..];
        let word = |text: &str| -> String {
            text.trim_start()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        };
        match rest.strip_prefix('{') {
            None => found.push(word(rest)),
            Some(list) => {
                let mut depth = 0;
                found.push(word(list));
                for (at, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => found.push(word(&list[at + 1..])),
                        _ => {}
                    }
                }
            }
        }
    }
    found.retain(|module| !module.is_empty());
    found
}

/// What is impure about a file of `protocol`.
fn impurities(text: &str) -> Vec<String> {
    let code = code(text);
    let mut found: Vec<String> = IMPURE
        .into_iter()
        .filter(|word| names(&code, word))
        .map(str::to_owned)
        .collect();
    let elsewhere = modules(&code).into_iter().filter(|module| module != "protocol");
    found.extend(elsewhere.map(|module| format!("crate::{module}")));
    found
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// What `module` may not import of what `text` imports.
fn up_arrows(module: &str, text: &str) -> Vec<String> {
    let own = layer(module);
    modules(&code(text))
        .into_iter()
        .filter(|imported| imported != module)
        // Types that lib.rs re-exports are named in doc comments only, which are no code.
        .filter(|imported| match (own, layer(imported)) {
            (Some(own), Some(theirs)) => theirs < own,
            _ => true,
        })
        .map(|imported| format!("{module} -> {imported}"))
        .collect()
}

#[test]
fn the_protocol_is_pure() {
    let files = sources(&src().join("protocol"));
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let found = impurities(&fs::read_to_string(&file).unwrap());
        assert!(found.is_empty(), "{} names {found:?}", file.display());
    }
}

#[test]
fn imports_point_down() {
    let mut checked = 0;
    for file in sources(&src()) {
        let relative = file.strip_prefix(src()).unwrap();
        let first = relative.iter().next().unwrap().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        // Tests may start servers.
        if module == "lib" || module == "bin" || relative.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        if ASIDE.contains(&module) {
            let others: Vec<_> = modules(&code(&text))
                .into_iter()
                .filter(|imported| layer(imported).is_some())
                .collect();
            assert!(others.is_empty(), "{} imports {others:?}", file.display());
            continue;
        }
        assert!(layer(module).is_some(), "{module} has no place in the layers");
        let found = up_arrows(module, &text);
        assert!(found.is_empty(), "{}: {found:?}", file.display());
        checked += 1;
    }
    assert!(checked > 15);
}

#[test]
fn the_checks_can_fail() {
    for (bad, named) in [
        ("use tokio::time::sleep;", "tokio"),
        ("fn f() { let _ = std::time::Instant::now(); }", "Instant"),
        ("use std::time::{Duration, SystemTime};", "SystemTime"),
        ("let x = fastrand::u32(..);", "fastrand"),
        ("use rand::Rng;", "rand"),
        ("use std::net::IpAddr;", "std::net"),
        ("use fred::types::Value;", "fred"),
        ("use crate::node::Fault;", "crate::node"),
        ("use crate::{protocol::quorum, error::Votes};", "crate::error"),
        ("async fn f() {}", "async"),
    ] {
        let found = impurities(bad);
        assert!(found.iter().any(|found| found == named), "{bad}: {found:?}");
    }
    for good in [
        "// tokio, fred and std::time::Instant are in a comment",
        "/// `crate::Redlock` too",
        "use std::time::Duration; fn random(operand: u32) {}",
        "use crate::protocol::quorum::Tally;",
    ] {
        assert!(impurities(good).is_empty(), "{good}");
    }

    assert_eq!(
        up_arrows("keys", "use crate::{round::Round, lease::{Lease, LeaseHandle}};"),
        ["keys -> lease"]
    );
    assert_eq!(
        up_arrows("node", "use crate::options::Terms;"),
        ["node -> options"]
    );
    assert_eq!(
        up_arrows("waiting", "use crate::unheard_of::X;"),
        ["waiting -> unheard_of"]
    );
    assert!(up_arrows("round", "use crate::node::Node; use crate::error::Votes;").is_empty());
}
