//! Deliberate faults, each of which the tests must notice (`scripts/mutants`). The TOML files in this folder list them. The tests
//! here check that each entry still applies.
//!
//! With `QUORLOCK_MUTANTS_INTO=DIR`, they write the script's input into `DIR/<name>/`: the changed files under `tree/`, the test
//! targets in `suites`, the reason in `why`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use serde::Deserialize;

/// One fault.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// How the faulty code behaves.
    why: String,
    file: String,
    old: String,
    new: String,
    /// Further edits of the same fault.
    #[serde(default)]
    also: Vec<Edit>,
    /// The test targets that must notice the fault, tried in this order until one fails. `unit` stands for the tests in `src/`.
    #[serde(default = "simulations")]
    suites: Vec<String>,
}

/// Replaces `old`, which must occur exactly once in the file. Any white space in `old` matches any other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: String,
    old: String,
    new: String,
}

fn simulations() -> Vec<String> {
    ["randomised", "scripted"].map(Into::into).into()
}

fn main() -> ExitCode {
    let into = env::var_os("QUORLOCK_MUTANTS_INTO").map(PathBuf::from);
    let mut mutants: BTreeMap<String, Mutant> = BTreeMap::new();
    for entry in fs::read_dir("tests/mutants").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = fs::read_to_string(&path).unwrap();
            let entries: BTreeMap<String, Mutant> =
                toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for (name, mutant) in entries {
                let twice = mutants.insert(name.clone(), mutant).is_some();
                assert!(!twice, "two mutants are called {name}");
            }
        }
    }
    let trial = |(name, mutant): (String, Mutant)| {
        let into = into.as_ref().map(|into| into.join(&name));
        Trial::test(name, move || mutant.apply(into.as_deref()))
    };
    libtest_mimic::run(&Arguments::from_args(), mutants.into_iter().map(trial).collect()).exit_code()
}

impl Mutant {
    /// Makes the edits, and writes them if there is a folder for them.
    fn apply(self, into: Option<&Path>) -> Result<(), Failed> {
        let is_there = |suite: &String| {
            let paths = [format!("tests/{suite}.rs"), format!("tests/{suite}/main.rs")];
            suite == "unit" || paths.iter().any(|path| Path::new(path).exists())
        };
        if let Some(suite) = self.suites.iter().find(|suite| !is_there(suite)) {
            return Err(format!("there is no test target {suite}").into());
        }
        let first = Edit {
            file: self.file,
            old: self.old,
            new: self.new,
        };
        let mut changed: BTreeMap<String, String> = BTreeMap::new();
        for Edit { file, old, new } in [first].into_iter().chain(self.also) {
            let text = match changed.remove(&file) {
                Some(text) => text,
                None => fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?,
            };
            let [place] = &places(&text, &old)[..] else {
                let times = places(&text, &old).len();
                return Err(format!(
                    "{file} contains this text {times} times, and should contain it once:\n{old}"
                )
                .into());
            };
            let text = [&text[..place.start], &new, &text[place.end..]].concat();
            changed.insert(file, text);
        }
        let Some(into) = into else {
            return Ok(());
        };
        for (file, text) in changed {
            let path = into.join("tree").join(file);
            fs::create_dir_all(path.parent().unwrap())?;
            fs::write(path, text)?;
        }
        fs::write(into.join("suites"), self.suites.join(" "))?;
        fs::write(into.join("why"), self.why)?;
        Ok(())
    }
}

/// Returns where the text contains these words, with any white space between them; nothing without words.
fn places(text: &str, words: &str) -> Vec<Range<usize>> {
    let first = words.split_whitespace().next();
    let starts = first
        .into_iter()
        .flat_map(|first| text.match_indices(first).map(|(start, _)| start));
    let end = |start: usize| {
        let mut rest = &text[start..];
        for (at, word) in words.split_whitespace().enumerate() {
            let next = rest.trim_start();
            if at > 0 && next.len() == rest.len() {
                return None;
            }
            rest = next.strip_prefix(word)?;
        }
        Some(start..text.len() - rest.len())
    };
    starts.filter_map(end).collect()
}
