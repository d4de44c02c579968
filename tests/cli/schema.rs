//! What the tool prints with `--json`, compared with `docs/schema`. `support.rs` checks the output of every test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::{Registry, Validator};
use quorlock::testbed::Testbed;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{finish, text, with};

const EVENTS: &str = "events";

/// Every schema by the name of its file, and every event's part of `events.json` by the name of the event.
static SCHEMAS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    let read = |file: &Path| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
    let files: BTreeMap<String, Value> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|file| {
            (
                file.file_stem().unwrap().to_str().unwrap().to_owned(),
                read(&file),
            )
        })
        .collect();
    let address = |name: &str| format!("json-schema:///{name}.json");
    let mut registry = Registry::new();
    for (name, schema) in &files {
        registry = registry.add(address(name), schema.clone()).unwrap();
    }
    let registry = registry.prepare().unwrap();
    let validator = |address: String| {
        let reference = json!({"$schema": files[EVENTS]["$schema"], "$ref": address});
        jsonschema::options()
            .with_registry(&registry)
            .build(&reference)
            .unwrap()
    };
    let events = files[EVENTS]["$defs"].as_object().unwrap().keys();
    let events = events.map(|event| (event_part(event), format!("{}#/$defs/{event}", address(EVENTS))));
    let whole = files.keys().map(|name| (name.clone(), address(name)));
    whole
        .chain(events)
        .map(|(name, address)| (name, validator(address)))
        .collect()
});

fn event_part(event: &str) -> String {
    format!("{EVENTS}/{event}")
}

/// Returns how a document differs from its schema. `None` if it does not.
fn difference(name: &str, document: &Value) -> Option<String> {
    let Some(schema) = SCHEMAS.get(name) else {
        return Some(format!("docs/schema has no {name}"));
    };
    let errors: Vec<String> = schema
        .iter_errors(document)
        .map(|error| {
            format!(
                "{} at {:?}: {error}",
                error.schema_path(),
                error.instance_path().as_str()
            )
        })
        .collect();
    (!errors.is_empty()).then(|| {
        format!(
            "{document}\ndiffers from docs/schema ({name}):\n{}",
            errors.join("\n")
        )
    })
}

/// What a run of the tool prints with `--json`.
#[derive(Clone, Debug)]
pub(crate) struct Printed {
    /// The schema of a line of standard output. `None` if that belongs to a command.
    document: Option<String>,
}

impl Printed {
    /// Returns `None` if the tool is run without `--json`, or by a script.
    pub(crate) fn by(command: &Command) -> Option<Printed> {
        let command = command.as_std();
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let words: Vec<&str> = words.filter_map(|word| word.to_str()).collect();
        let tool = words
            .iter()
            .position(|word| *word == env!("CARGO_BIN_EXE_quorlock"))?;
        let own: Vec<&str> = words[tool + 1..]
            .iter()
            .copied()
            .take_while(|word| *word != "--")
            .collect();
        let runs_command = words[tool + 1..].contains(&"--");
        let document = own
            .iter()
            .find(|word| SCHEMAS.contains_key(**word) && !runs_command);
        own.contains(&"--json").then(|| Printed {
            document: document.map(|name| (*name).to_owned()),
        })
    }

    pub(crate) fn check_stdout(&self, line: &str) {
        if let Some(name) = &self.document {
            let document = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
            assert_same(name, &document);
        }
    }

    /// Checks a line of standard error. A command may print other lines there.
    pub(crate) fn check_stderr(&self, line: &str) {
        match serde_json::from_str::<Value>(line) {
            Ok(event) if event["event"].is_string() => {
                assert_same(&event_part(event["event"].as_str().unwrap()), &event);
                assert_same(EVENTS, &event);
            }
            _ => assert!(self.document.is_none(), "no event: {line}"),
        }
    }
}

fn assert_same(name: &str, document: &Value) {
    if let Some(difference) = difference(name, document) {
        panic!("{difference}");
    }
}

/// Returns copies with one fault each, at any depth: a member that is missing, has another name, or has come in addition.
fn faulty(document: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match document {
        Value::Object(members) => {
            let copy = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
                let mut members = members.clone();
                change(&mut members);
                Value::Object(members)
            };
            all.push(copy(&|members| {
                drop(members.insert("added".to_owned(), Value::Null))
            }));
            for (name, value) in members {
                all.push(copy(&|members| drop(members.remove(name))));
                all.push(copy(&|members| {
                    let value = members.remove(name).unwrap();
                    members.insert(format!("{name}_renamed"), value);
                }));
                for inner in faulty(value) {
                    all.push(copy(&|members| drop(members.insert(name.clone(), inner.clone()))));
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                all.extend(faulty(item).into_iter().map(|item| {
                    let mut items = items.clone();
                    items[at] = item;
                    Value::Array(items)
                }));
            }
        }
        _ => {}
    }
    all
}

#[tokio::test]
async fn a_member_that_is_missing_renamed_or_added_is_noticed() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    testbed.nodes()[2].kill().await.unwrap();
    let mut checked = 0;
    for (name, arguments) in [
        ("acquire", &["r"][..]),
        ("run", &["r", "--no-wait", "--", "true"]),
        ("run", &["other", "--", "true"]),
        ("show", &["r"]),
        ("status", &[]),
        ("members", &[]),
        ("locks", &["--holders"]),
    ] {
        let command = [&[name, "--json", "--connect-timeout", "1s"], arguments].concat();
        let output = finish(with(&urls, &command)).await;
        let documents = text(&output.stdout) + &text(&output.stderr);
        for document in documents
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
        {
            let schema = document["event"].as_str().map_or(name.to_owned(), event_part);
            assert_eq!(difference(&schema, &document), None);
            for faulty in faulty(&document) {
                assert!(difference(&schema, &faulty).is_some(), "not noticed: {faulty}");
                checked += 1;
            }
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn the_schemas_are_schemas_and_the_document_names_all_of_them() {
    let document = include_str!("../../docs/tool.md");
    for name in SCHEMAS.keys() {
        let words = match name.strip_prefix(&event_part("")) {
            Some(event) => format!("| `{event}`"),
            None => format!("schema/{name}.json"),
        };
        assert!(
            document.contains(&words),
            "docs/tool.md does not contain {words:?}"
        );
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    for file in fs::read_dir(folder).unwrap() {
        let schema = serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap();
        jsonschema::meta::validate(&schema).unwrap();
    }
}
