//! The configuration file: what it contains, where it is, and what is wrong with it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::secured;
use crate::settings::{NOWHERE, config, ends, one_node, set, ttl};
use crate::support::{finish, text, with};

#[tokio::test]
async fn the_file_names_the_nodes_and_how_locks_are_taken_on_them() {
    let testbed = secured(3, "sEcReT").await;
    let urls = testbed.urls();
    let without_password: Vec<String> = urls.iter().map(|url| url.replace(":sEcReT@", "")).collect();
    fs::write(testbed.folder().join("password"), "sEcReT\n").unwrap();
    let file = config(
        testbed.folder(),
        // A relative path begins at the file.
        &format!(
            "nodes = {without_password:?}\npassword-file = \"password\"\nname = \"billing\"\nkey-prefix = \"b:\"\n\
             no-fencing = true\nwait = \"forever\"\nguard-window = \"1m\"\nttl = \"50s\"\nconnect-timeout = \"10s\"\n"
        ),
    );
    // Under another prefix, the nodes' memories have just begun.
    let acquire = ["acquire", "--config", &file, "--no-restart-guard", "r"];
    ends(with(&[], &acquire), 0).await;
    let shown = finish(with(&[], &["--config", &file, "show", "r"])).await;
    let shown = text(&shown.stdout);
    assert!(shown.contains("held by billing on "), "{shown}");
    assert!(!shown.contains("token"), "{shown}");
    // The lock is behind the prefix of the file.
    let usual = finish(set(
        &[],
        &[("QUORLOCK_CONFIG", &file)],
        &["show", "--key-prefix", "quorlock:", "r"],
    ))
    .await;
    assert!(text(&usual.stdout).contains("r: free"), "{}", text(&usual.stdout));

    // A variable cannot be empty; a key can.
    let file = config(testbed.folder(), "key-prefix = ''");
    ends(
        with(
            &urls,
            &["acquire", "--config", &file, "--no-restart-guard", "bare"],
        ),
        0,
    )
    .await;
    let bare = finish(with(&urls, &["show", "--key-prefix", "", "bare"])).await;
    assert!(
        text(&bare.stdout).contains("bare: held"),
        "{}",
        text(&bare.stdout)
    );

    // An option replaces the list of the file.
    let said = ends(
        with(
            &[],
            &[
                "status",
                "--config",
                &file,
                "--node",
                NOWHERE,
                "--connect-timeout",
                "100ms",
            ],
        ),
        69,
    );
    said.await;
}

#[tokio::test]
async fn a_wrong_file_is_named_with_the_line_and_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for (lines, words) in [
        (
            "ttl = '30s'\nttls = '30s'",
            &["line 2: unknown key \"ttls\"", "key-prefix", "ttl, wait"][..],
        ),
        ("config = 'other'", &["line 1: unknown key \"config\""]),
        ("[run]\nttl = '30s'", &["line 1: unknown key \"run\""]),
        (
            "\nttl = 30",
            &["line 2: ttl: expected a string", "--ttl <DURATION>"],
        ),
        ("ttl = '30'", &["line 1: ttl: invalid value \"30\"", "time unit"]),
        // Another command's option.
        ("wait = 'a while'", &["line 1: wait: invalid value \"a while\""]),
        (
            "no-fencing = 'true'",
            &["line 1: no-fencing: expected true or false"],
        ),
        (
            "nodes = 'redis://h'\nnodes = 'redis://h'",
            &["line 2: ", "duplicate"],
        ),
        ("nodes = [1]", &["line 1: nodes: expected a list of strings"]),
        (
            "ttl = '30s'\nnodes = ['redis://h:1', 'redis://h:port']",
            &["line 2: nodes: ", "redis://h:***"],
        ),
        ("ttl = '30s", &["line 1: "]),
    ] {
        let file = config(folder.path(), lines);
        let said = ends(with(&[], &["status", "--config", &file]), 2).await;
        for words in [&[&*file], words].concat() {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    let missing = missing.to_str().unwrap();
    for said in [
        ends(with(&[], &["status", "--config", missing]), 2).await,
        ends(set(&[], &[("QUORLOCK_CONFIG", missing)], &["status"]), 2).await,
    ] {
        assert!(said.contains(missing) && said.contains("No such file"), "{said}");
    }
    // Commands without these options read no file.
    ends(
        with(&[], &["testbed", "-n", "1", "--config", missing, "--", "true"]),
        0,
    )
    .await;
}

#[tokio::test]
async fn the_first_file_in_the_usual_places_is_read() {
    let testbed = one_node().await;
    let urls = testbed.urls();
    let (home, other) = (testbed.folder().join("home"), testbed.folder().join("xdg"));
    let place = |folder: &Path, ttl: &str| {
        fs::create_dir_all(folder.join("quorlock")).unwrap();
        fs::write(folder.join("quorlock/config.toml"), format!("ttl = {ttl:?}")).unwrap();
    };
    let usual = |resource: &str, xdg: &Path| {
        let mut command = with(&urls, &["acquire", resource]);
        command
            // Empty is unset.
            .env("QUORLOCK_CONFIG", "")
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", xdg);
        command
    };
    place(&home.join(".config"), "12s");
    assert_eq!(ttl(usual("a", Path::new(""))).await, "12000");
    place(&other, "11s");
    assert_eq!(ttl(usual("b", &other)).await, "11000");

    // What cannot be read there is no missing file.
    fs::remove_file(other.join("quorlock/config.toml")).unwrap();
    fs::create_dir(other.join("quorlock/config.toml")).unwrap();
    let said = ends(usual("c", &other), 2).await;
    assert!(
        said.contains("cannot read") && said.contains("xdg/quorlock/config.toml"),
        "{said}"
    );
}

#[tokio::test]
async fn passwords_that_all_users_may_read_are_warned_about() {
    let testbed = secured(1, "sEcReT").await;
    let open = one_node().await;
    for (urls, mode, warned) in [
        (testbed.urls(), 0o644, true),
        (testbed.urls(), 0o640, false),
        (open.urls(), 0o644, false),
    ] {
        let file = config(testbed.folder(), &format!("nodes = {urls:?}"));
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let said = ends(with(&[], &["status", "--config", &file]), 0).await;
        assert_eq!(said.contains("all users may read it"), warned, "{mode:o}: {said}");
        assert!(!said.contains("sEcReT"), "{said}");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn half_of_a_client_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "tls-key = 'key'");
    for half in [["--tls-cert", "cert"], ["--config", &file]] {
        let arguments = [&["status", "--node", "rediss://127.0.0.1:1"], &half[..]].concat();
        let said = ends(with(&[], &arguments), 2).await;
        assert!(said.contains("needs --tls-cert and --tls-key"), "{said}");
    }
}
