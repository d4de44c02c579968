//! Messages about nodes, and about missing ones.

use quorlock::testbed::Testbed;

use crate::support::{Running, finish, free, holder, text, with};
use crate::{secured, testbed};

/// Servers that were just started may have forgotten locks.
#[tokio::test]
async fn nodes_that_have_just_started_are_said_to_be_waited_for() {
    let testbed = Testbed::builder().nodes(1).arg("appendonly", "no");
    let testbed = testbed.start().await.unwrap();
    let urls = testbed.urls();
    let output = finish(with(&urls, &["run", "--no-wait", "r", "--", "true"])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(
        said.contains("may have forgotten locks") && said.contains("--wait"),
        "{said}"
    );
    let short = ["--ttl", "1s", "--guard-window", "1s", "--wait", "30s"];
    let waiting = [&["run"], &short[..], &["r", "--", "true"]].concat();
    assert_eq!(finish(with(&urls, &waiting)).await.status.code(), Some(0));
    let at_once = ["run", "-v", "--no-wait", "--no-restart-guard", "r", "--", "true"];
    let output = finish(with(&urls, &at_once)).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        !said.contains("restart guard"),
        "the message names the restart guard, which is off: {said}"
    );
}

#[tokio::test]
async fn without_a_quorum_every_node_is_named_and_no_password() {
    let testbed = secured(5, "sEcReT").await;
    let urls = testbed.urls();
    assert_eq!(
        finish(with(&urls, &["run", "r", "--", "true"]))
            .await
            .status
            .code(),
        Some(0)
    );
    let dead = &testbed.nodes()[..3];
    for node in dead {
        node.kill().await.unwrap();
    }
    let options: Vec<&str> = urls.iter().flat_map(|url| ["--node", url]).collect();
    for output in [&[][..], &["-vvv"], &["--json", "-vvv"]] {
        for (mut arguments, held) in [
            (vec!["run", "--connect-timeout", "200ms", "r"], true),
            (vec!["status", "--connect-timeout", "200ms"], false),
        ] {
            arguments.extend(output);
            arguments.extend(&options);
            if held {
                arguments.extend(["--", "echo", "ran"]);
            }
            let output = finish(with(&[], &arguments)).await;
            let said = text(&output.stderr) + &text(&output.stdout);
            assert_eq!(output.status.code(), Some(69), "{said}");
            for node in dead {
                assert!(said.contains(&node.addr().to_string()), "{said}");
            }
            assert!(!said.contains("sEcReT"), "{said}");
            assert!(!said.contains("\nran"), "{said}");
        }
    }
}

#[tokio::test]
async fn another_list_of_nodes_is_told_once() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holder(&urls, "other").await;
    for wait in [&["--no-wait"][..], &["--wait", "500ms"]] {
        let run = [&["run"], wait, &["r", "--", "echo", "ran"]].concat();
        let output = finish(with(&urls[..1], &run)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{said}");
        let once = said.matches(&testbed.nodes()[1].addr().to_string()).count();
        assert_eq!(once, 1, "{said}");
    }
    holder.close_input();
    assert_eq!(holder.end().await, (Some(0), String::new()));
}

/// The command is looked up before the lock is acquired.
#[tokio::test]
async fn a_missing_command_is_found_before_anything_else() {
    let nowhere = ["redis://127.0.0.1:1".to_owned()];
    for command in ["quorlock-no-such-command", "/no/such/command"] {
        let output = finish(with(&nowhere, &["run", "r", "--", command])).await;
        assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
    }
}

#[tokio::test]
async fn a_wrong_password_is_named_but_not_shown() {
    let testbed = secured(1, "right").await;
    let url = testbed.urls()[0].replace("right", "wRoNg");
    for output in [&[][..], &["--json"], &["-vvv"]] {
        let arguments = ["run", "--connect-timeout", "200ms", "--node", &url];
        let arguments = [&arguments[..], output, &["r", "--", "env"]].concat();
        let output = finish(with(&[], &arguments)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("authentication failed"), "{said}");
        assert!(!said.contains("wRoNg"), "{said}");
    }
    // The command does not learn the right password, either.
    let arguments = ["run", "-vvv", "--node", &testbed.urls()[0], "r", "--", "env"];
    let output = finish(with(&[], &arguments)).await;
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stderr) + &text(&output.stdout);
    assert!(
        said.contains("QUORLOCK_RESOURCE=r") && !said.contains("right"),
        "{said}"
    );
}

#[tokio::test]
async fn warnings_reach_the_user() {
    let testbed = Testbed::builder()
        .nodes(1)
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .await
        .unwrap();
    let output = finish(with(&testbed.urls(), &["run", "r", "--", "true"])).await;
    let said = text(&output.stderr);
    assert!(
        said.contains("warning: 127.0.0.1:") && said.contains("allkeys-lru"),
        "{said}"
    );
    let output = finish(with(&testbed.urls(), &["status"])).await;
    assert!(text(&output.stdout).contains("allkeys-lru"));
}

#[tokio::test]
async fn status_tells_the_nodes_that_are_down() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    testbed.nodes()[1].kill().await.unwrap();
    let output = finish(with(&urls, &["status"])).await;
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    assert!(
        said.contains(&format!("{}: up\n", testbed.nodes()[0].addr())),
        "{said}"
    );
    assert!(
        said.contains(&format!("{}: not connected", testbed.nodes()[1].addr())),
        "{said}"
    );
    assert!(said.contains("2 of 3 nodes up, 2 needed: quorum"), "{said}");
    // An inspection gives the same reason.
    let shown = text(&finish(with(&urls, &["show", "job"])).await.stdout);
    let down = said.lines().find(|line| line.contains("not connected")).unwrap();
    let (_, reason) = down.split_once("not connected: ").unwrap();
    assert!(
        shown.contains(&format!("unknown: not connected: {reason}")),
        "{shown}"
    );

    let output = finish(with(&urls, &["--json", "status"])).await;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["up"], &told["quorum"]), (&2.into(), &2.into()));
    assert_eq!(told["nodes"][1]["up"], false);
}

/// The password is rotated twice.
#[tokio::test]
async fn passwords_from_a_file_and_from_a_command_are_asked_for_anew() {
    let testbed = testbed().await;
    let folder = testbed.folder().to_owned();
    let file = folder.join("password");
    let rotate = async |password: &str| {
        for node in testbed.nodes() {
            let secret = format!(">{password}");
            let user = [
                "ACL",
                "SETUSER",
                "locker",
                "on",
                "resetpass",
                &secret,
                "~*",
                "&*",
                "+@all",
            ];
            node.command(&user).await.unwrap();
        }
        std::fs::write(&file, format!("{password}\n")).unwrap();
        for node in testbed.nodes() {
            node.command(&["CLIENT", "KILL", "USER", "locker"]).await.unwrap();
        }
    };
    rotate("first").await;
    let urls: Vec<String> = testbed
        .nodes()
        .iter()
        .map(|node| format!("redis://locker@{}", node.addr()))
        .collect();
    let from_a_file = format!("--password-file={}", file.display());
    let from_a_command = format!("--credentials-command=cat {}; echo 2s", file.display());
    let mut running = Vec::new();
    for (number, option) in [&from_a_file, &from_a_command].into_iter().enumerate() {
        let (name, marker) = (format!("r{number}"), format!("rotated{number}"));
        let script = format!(
            "echo ready; until [ -e {}/{marker} ]; do sleep 0.05; done",
            folder.display()
        );
        let arguments = [
            "run", "-v", "--json", "--ttl", "4s", option, &name, "--", "sh", "-c", &script,
        ];
        let mut one = Running::start(with(&urls, &arguments));
        assert_eq!(one.line().await, "ready");
        running.push(one);
    }
    for password in ["second", "third"] {
        rotate(password).await;
        for one in &mut running {
            one.event("renewed").await;
            one.event("renewed").await;
        }
    }
    for number in 0..running.len() {
        std::fs::write(folder.join(format!("rotated{number}")), "").unwrap();
    }
    for one in running {
        assert_eq!(one.end().await.0, Some(0));
    }
    free(&testbed).await;
}
