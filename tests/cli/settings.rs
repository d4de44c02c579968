//! Options from variables and from the configuration file: which one counts.

use std::fs;
use std::path::Path;

use quorlock::testbed::Testbed;
use tokio::process::Command;

use crate::secured;
use crate::support::{finish, holder, text, with};

pub(crate) const NOWHERE: &str = "redis://127.0.0.1:1";

pub(crate) async fn one_node() -> Testbed {
    Testbed::start(1).await.unwrap()
}

/// Returns the tool with these variables.
pub(crate) fn set(urls: &[String], variables: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = with(urls, arguments);
    command.envs(variables.iter().copied());
    command
}

/// Writes a configuration file, and returns its path.
pub(crate) fn config(folder: &Path, lines: &str) -> String {
    let file = folder.join("quorlock.toml");
    fs::write(&file, lines).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Runs the tool, and returns its standard error.
pub(crate) async fn ends(command: Command, code: i32) -> String {
    let output = finish(command).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Acquires a lock. Returns its TTL in milliseconds, which is part of the handle.
pub(crate) async fn ttl(command: Command) -> String {
    let output = finish(command).await;
    let handle = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    handle.split(':').nth(2).unwrap().to_owned()
}

#[tokio::test]
async fn an_option_beats_its_variable_and_the_variable_the_file() {
    let testbed = one_node().await;
    let urls = testbed.urls();
    let file = config(testbed.folder(), "ttl = \"20s\"");
    let ttl_of = async |resource: &str, variables: &[(&str, &str)], options: &[&str]| {
        let arguments = [&["acquire"], options, &[resource]].concat();
        ttl(set(&urls, variables, &arguments)).await
    };
    let (from_file, from_variable) = (["--config", &*file], ("QUORLOCK_TTL", "19s"));
    let named = ("QUORLOCK_CONFIG", &*file);
    assert_eq!(ttl_of("a", &[], &[]).await, "30000");
    assert_eq!(ttl_of("b", &[], &from_file).await, "20000");
    assert_eq!(ttl_of("c", &[named], &[]).await, "20000");
    assert_eq!(ttl_of("d", &[from_variable], &from_file).await, "19000");
    let options = [&from_file[..], &["--ttl", "18s"]].concat();
    assert_eq!(ttl_of("e", &[from_variable], &options).await, "18000");
    // An empty variable is not set; one that an option replaces is not read.
    assert_eq!(ttl_of("f", &[("QUORLOCK_TTL", ""), named], &[]).await, "20000");
    assert_eq!(
        ttl_of("g", &[("QUORLOCK_TTL", "soon")], &["--ttl", "17s"]).await,
        "17000"
    );
}

#[tokio::test]
async fn a_variable_switches_a_flag_of_the_file_off() {
    let testbed = one_node().await;
    let file = config(testbed.folder(), "no-fencing = true");
    for (variable, token) in [("", "null"), ("false", "1"), ("true", "null")] {
        let variables = [("QUORLOCK_CONFIG", &*file), ("QUORLOCK_NO_FENCING", variable)];
        let name = format!("lock{variable}");
        let command = set(&testbed.urls(), &variables, &["acquire", "--json", &name]);
        let shown = text(&finish(command).await.stdout);
        assert!(
            shown.contains(&format!("\"fencing_token\":{token}")),
            "{variable}: {shown}"
        );
    }
}

#[tokio::test]
async fn a_variable_without_effect_is_named() {
    let testbed = one_node().await;
    let variables = [
        ("QUORLOCK_TTLS", "1m"),
        ("QUORLOCK_ONCE_PER", "24h"),
        ("QUORLOCK_EMPTY", ""),
        // Those of an outer run.
        ("QUORLOCK_RESOURCE", "r"),
        ("QUORLOCK_FENCING_TOKEN", "1"),
        ("QUORLOCK_PERIOD", "2026-11-30T00:00:00Z"),
        ("QUORLOCK_HANDLE", "h"),
        ("QUORLOCK_LOG", "warn"),
        // Another command's option.
        ("QUORLOCK_WAIT", "1s"),
    ];
    let said = ends(set(&testbed.urls(), &variables, &["show", "r"]), 0).await;
    let names = "QUORLOCK_ONCE_PER, QUORLOCK_TTLS";
    let warning = format!("warning: unknown variables, which have no effect: {names}\n");
    assert_eq!(said, format!("quorlock: {warning}"));
    assert_eq!(
        ends(set(&testbed.urls(), &variables, &["-q", "show", "r"]), 0).await,
        ""
    );
    let wrong = ends(
        set(&[], &[("QUORLOCK_NODES", "redis://h:port")], &["show", "r"]),
        2,
    )
    .await;
    assert!(
        wrong.contains("QUORLOCK_NODES: ") && wrong.contains("redis://h:***"),
        "{wrong}"
    );
}

/// A password in a file is for the nodes of that file.
#[tokio::test]
async fn a_password_is_not_sent_to_nodes_of_a_stronger_layer() {
    let testbed = one_node().await;
    let urls = testbed.urls();
    let node = &testbed.nodes()[0];
    let users = ["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all"];
    node.command(&users).await.unwrap();
    let url = urls[0].replace("redis://", "redis://app:right@");
    let file = config(testbed.folder(), "credentials-command = \"echo wrong\"");
    let status = |variables: &[(&str, &str)], options: &[&str]| {
        let arguments = [&["status", "--config", &*file], options].concat();
        ends(set(&[], variables, &arguments), 0)
    };
    assert_eq!(status(&[], &["--node", &url]).await, "");
    assert_eq!(status(&[("QUORLOCK_NODES", &url)], &[]).await, "");
    // With the option, it is meant for these nodes.
    let given = ["--node", &*url, "--credentials-command", "echo wrong"];
    let refused = finish(set(&[], &[], &[&["status"], &given[..]].concat())).await;
    assert_eq!(refused.status.code(), Some(69), "{}", text(&refused.stderr));
}

/// clap takes a variable for a given option, which conflicts with others.
#[tokio::test]
async fn an_option_rules_out_variables_and_keys_that_conflict_with_it() {
    let testbed = one_node().await;
    let urls = testbed.urls();
    let folder = testbed.folder();
    let run = ["r", "--", "true"];
    for (option, variable, value) in [
        (&["--no-fencing"][..], "QUORLOCK_COUNTER_RETENTION", "1h"),
        (&["--counter-retention", "1h"], "QUORLOCK_NO_FENCING", "true"),
        (&["--no-restart-guard"], "QUORLOCK_GUARD_WINDOW", "1m"),
        (
            &["--credentials-command", "echo"],
            "QUORLOCK_PASSWORD_FILE",
            "/no/such/file",
        ),
    ] {
        let arguments = [&["run", "--connect-timeout", "100ms"], option, &run].concat();
        // This password is wrong, and the command for it has printed none.
        let code = if option[0] == "--credentials-command" {
            69
        } else {
            0
        };
        let key = variable
            .strip_prefix("QUORLOCK_")
            .unwrap()
            .to_lowercase()
            .replace('_', "-");
        let value_in_file = if value == "true" {
            value.to_owned()
        } else {
            format!("{value:?}")
        };
        let file = config(folder, &format!("{key} = {value_in_file}"));
        for variables in [(variable, value), ("QUORLOCK_CONFIG", &*file)] {
            let said = ends(set(&urls, &[variables], &arguments), code).await;
            assert!(!said.contains("/no/such/file"), "{said}");
        }
    }

    // A wait without end would end this test.
    let _holder = holder(&urls, "r").await;
    let once = [&["run", "--no-wait"], &run[..]].concat();
    ends(set(&urls, &[("QUORLOCK_WAIT", "forever")], &once), 75).await;

    // The nodes of a testbed have neither these URLs nor a password.
    let variables = [("QUORLOCK_PASSWORD_FILE", "/no/such/file")];
    let nowhere = [NOWHERE.to_owned()];
    ends(
        set(&nowhere, &variables, &["run", "--testbed", "r", "--", "true"]),
        0,
    )
    .await;
    let own = env!("CARGO_BIN_EXE_quorlock");
    let file = config(folder, "credentials-command = 'echo secret'");
    let variables = [variables[0], ("QUORLOCK_CONFIG", &file)];
    let nested = ["testbed", "-n", "1", "--", own, "run", "r", "--", "true"];
    ends(set(&nowhere, &variables, &nested), 0).await;
}

#[tokio::test]
async fn a_variable_rules_out_a_key_that_conflicts_with_it() {
    let testbed = secured(1, "right").await;
    let url = [testbed.urls()[0].replace(":right@", "")];
    let file = config(testbed.folder(), "password-file = '/no/such/file'");
    let variables = [
        ("QUORLOCK_CONFIG", &*file),
        ("QUORLOCK_CREDENTIALS_COMMAND", "echo right"),
    ];
    ends(set(&url, &variables, &["run", "r", "--", "true"]), 0).await;

    let both = [("QUORLOCK_PASSWORD_FILE", "f"), variables[1]];
    let said = ends(set(&url, &both, &["status"]), 2).await;
    assert!(both.iter().all(|(name, _)| said.contains(name)), "{said}");
    let file = config(testbed.folder(), "no-fencing = true\ncounter-retention = '1h'");
    let said = ends(with(&url, &["run", "--config", &file, "r", "--", "true"]), 2).await;
    assert!(
        said.contains("line 1: no-fencing") && said.contains("line 2: counter-retention"),
        "{said}"
    );
}

#[tokio::test]
async fn a_wrong_variable_is_named() {
    let nowhere = [NOWHERE.to_owned()];
    for (variable, value, expected) in [
        ("QUORLOCK_TTL", "soon", "--ttl <DURATION>"),
        ("QUORLOCK_WAIT", "5", "time unit needed"),
        ("QUORLOCK_NO_FENCING", "yes", "true or false"),
    ] {
        let said = ends(
            set(&nowhere, &[(variable, value)], &["run", "r", "--", "true"]),
            2,
        )
        .await;
        for words in [variable, value, expected] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}

#[tokio::test]
async fn secrets_of_variables_are_neither_shown_nor_passed_on() {
    let testbed = secured(1, "sEcReT").await;
    let secret = [("QUORLOCK_CREDENTIALS_COMMAND", "echo sEcReT")];
    let url = [testbed.urls()[0].replace(":sEcReT@", "")];
    let output = finish(set(&url, &secret, &["run", "--hide-nodes", "r", "--", "env"])).await;
    let shown = text(&output.stdout);
    assert!(
        shown.contains("QUORLOCK_RESOURCE=r\n") && !shown.contains("sEcReT"),
        "{shown}"
    );

    let help = finish(set(&testbed.urls(), &secret, &["run", "--help"])).await;
    let shown = text(&help.stdout);
    assert!(shown.contains("[env: QUORLOCK_CREDENTIALS_COMMAND]"), "{shown}");
    assert!(
        shown.contains("[env: QUORLOCK_NODES]") && !shown.contains("sEcReT"),
        "{shown}"
    );
}

/// The message about an unknown key lists all keys.
#[tokio::test]
async fn the_document_lists_all_variables_and_keys() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "unknown = 1");
    let said = ends(with(&[], &["status", "--config", &file]), 2).await;
    let (_, keys) = said.trim().split_once("the keys are ").unwrap();
    let document = include_str!("../../docs/tool.md");
    for key in keys.split(", ") {
        let variable = format!("QUORLOCK_{}", key.to_uppercase().replace('-', "_"));
        let row = format!("| `{key}` | `{variable}` |");
        assert!(document.contains(&row), "{row}");
    }
}
