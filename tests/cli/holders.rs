//! Operators: who holds what, and how to step in.

use std::process::Stdio;

use quorlock::testbed::Data;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, eventually, finish, free, json, text, with};
use crate::testbed;

/// Starts a run that holds the lock until its input ends.
fn run(urls: &[String], name: &str, resource: &str) -> Running {
    let run = ["run", "--json", "--name", name, "--wait", "forever", resource];
    Running::start(with(
        urls,
        &[&run[..], &["--", "sh", "-c", "echo held; cat"]].concat(),
    ))
}

/// The same, once it holds the lock.
async fn holds(urls: &[String], name: &str, resource: &str) -> Running {
    let mut running = run(urls, name, resource);
    assert_eq!(running.line().await, "held");
    running
}

#[tokio::test]
async fn members_names_the_list_its_clients_and_the_nodes_that_do_not_list_them() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut billing = holds(&urls, "billing", "r").await;
    for node in &testbed.nodes()[..2] {
        let rights = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-scan"];
        assert_eq!(node.command(&rights).await.unwrap().as_str(), Some("OK"));
    }
    let as_app: Vec<String> = urls.iter().map(|url| url.replace("//", "//app:pw@")).collect();
    let few = [&as_app[..2], &urls[2..]].concat();
    for (urls, refusals) in [(&urls, 0), (&few, 2)] {
        let found = json(urls, &["members"]).await;
        let list = &found["lists"][0];
        assert_eq!(
            (list["nodes"].as_array().unwrap().len(), &found["lists"][1]),
            (3, &Value::Null)
        );
        assert!(
            list["clients"][0].as_str().unwrap().starts_with("billing on "),
            "{found}"
        );
        assert_eq!(found["unlisted"].as_array().unwrap().len(), refusals, "{found}");
        let said = text(&finish(with(urls, &["members"])).await.stdout);
        assert_eq!(said.matches("the user needs +scan\n").count(), refusals, "{said}");
        assert!(said.ends_with("one list of nodes is in use\n"), "{said}");
    }
    billing.close_input();
    assert_eq!(billing.end().await.0, Some(0));
}

#[tokio::test]
async fn a_process_that_hangs_is_found_and_its_lock_given_to_the_next() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut hangs = holds(&urls, "billing", "nightly").await;
    let pid = u64::from(hangs.child.id().unwrap());
    // Both quorlock and its guard are stopped with it, as on a machine that hangs.
    hangs.signal(Signal::STOP);

    let mut waits = run(&urls, "next", "nightly");
    let why = waits.event("waiting").await;
    assert_eq!(
        (&why["reason"], &why["holder"]["name"]),
        (&"held".into(), &"billing".into())
    );

    let listed = json(&urls, &["locks", "night*"]).await;
    assert_eq!(
        (&listed["resource"], &listed["status"]),
        (&"nightly".into(), &"held".into())
    );
    let shown = json(&urls, &["show", "nightly"]).await;
    let holder = &shown["holder"];
    assert_eq!(
        (holder["name"].as_str(), holder["pid"].as_u64()),
        (Some("billing"), Some(pid))
    );
    assert!(
        holder["since"].as_str().unwrap().ends_with('Z') && !holder["host"].is_null(),
        "{holder}"
    );
    let said = text(&finish(with(&urls, &["show", "nightly"])).await.stdout);
    assert!(
        said.starts_with("nightly: held by billing on ") && said.contains(" on 3 of 3 nodes"),
        "{said}"
    );

    let owner = shown["owner"].as_str().unwrap();
    let broken = json(&urls, &["break", "nightly", "--owner", owner]).await;
    assert_eq!(broken["outcome"], "broken");
    assert_eq!(waits.line().await, "held");
    // It has missed the break. Now it learns of it, and ends its command.
    hangs.signal(Signal::CONT);
    assert_eq!(hangs.event("lost").await["resource"], "nightly");
    assert_eq!(hangs.end().await.0, Some(79));
    waits.close_input();
    assert_eq!(waits.end().await.0, Some(0));
    free(&testbed).await;
}

#[tokio::test]
async fn a_running_holder_loses_a_broken_lock() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let run = [
        "run",
        "--json",
        "--ttl",
        "9s",
        "-vv",
        "job",
        "--",
        "sh",
        "-c",
        "echo held; cat",
    ];
    let mut running = Running::start(with(&urls, &run));
    assert_eq!(running.line().await, "held");
    running.event("renewed").await;
    let owner = json(&urls, &["show", "job"]).await["owner"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        json(&urls, &["break", "job", "--owner", &owner]).await["outcome"],
        "broken"
    );
    assert_eq!(running.event("lost").await["reason"], "gone");
    assert_eq!(running.end().await.0, Some(79));
    // Nothing is left to break, and nothing is deleted.
    let again = json(&urls, &["break", "job", "--owner", &owner]).await;
    assert_eq!(again["outcome"], "nothing_to_break");
    assert_eq!(again["nodes"][0]["outcome"], "no key");
    free(&testbed).await;
}

#[tokio::test]
async fn nothing_is_broken_blindly() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holds(&urls, "holder", "job").await;
    let mut unasked = with(&urls, &["break", "job"]);
    unasked.stdin(Stdio::null());
    let output = finish(unasked).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("quorlock show job") && said.contains("--owner"),
        "{said}"
    );
    let output = finish(with(&urls, &["break", "job", "--owner", "me"])).await;
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let other = "01a22951-9b43-788f-a88b-4954003a191e";
    let output = finish(with(&urls, &["break", "job", "--owner", other])).await;
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stdout));
    assert_eq!(json(&urls, &["show", "job"]).await["status"], "held");
    holder.close_input();
    assert_eq!(holder.end().await.0, Some(0));
}

#[tokio::test]
async fn locks_are_summed_up_by_holder_and_leftovers_named() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let output = finish(with(&urls, &["locks"])).await;
    assert_eq!(text(&output.stdout), "no locks\n");
    let mut holder = holds(&urls, "holder", "job").await;
    let summed = json(&urls, &["locks", "--holders"]).await;
    assert_eq!(
        (&summed["holder"]["name"], &summed["locks"]),
        (&"holder".into(), &1.into())
    );
    let output = finish(with(&urls, &["locks", "--leaked"])).await;
    assert_eq!(text(&output.stdout), "nothing is left behind\n");
    for node in testbed.nodes() {
        node.command(&["SET", "quorlock:endless", "x"]).await.unwrap();
    }
    let leaked = json(&urls, &["locks", "--leaked"]).await;
    assert_eq!(
        (&leaked["resource"], &leaked["leaks"][0]),
        (&"endless".into(), &"no_expiry".into())
    );
    holder.close_input();
    assert_eq!(holder.end().await.0, Some(0));
}

#[tokio::test]
async fn a_refusal_has_its_own_code_and_names_the_holder() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holds(&urls, "holder", "job").await;
    eventually("the refusal names the holder", async || {
        let run = ["run", "--json", "--no-wait", "-E", "7", "job", "--", "true"];
        let output = finish(with(&urls, &run)).await;
        assert_eq!(output.status.code(), Some(7));
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(
            (&error["event"], &error["resource"]),
            (&"error".into(), &"job".into())
        );
        assert!(error["remaining_ms"].as_u64().unwrap() > 0);
        error["holder"]["name"] == "holder"
    })
    .await;
    holder.close_input();
    assert_eq!(holder.end().await.0, Some(0));
}

/// What is left of the nodes is shown, although it does not tell who holds the lock.
#[tokio::test]
async fn without_a_quorum_the_rest_is_shown() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut holder = holds(&urls, "billing", "nightly").await;
    eventually("every node has the key", || async {
        let shown = json(&urls, &["show", "nightly"]).await;
        shown["keys"] == 3
    })
    .await;
    for node in &testbed.nodes()[..2] {
        node.kill().await.unwrap();
    }
    let look = async |command: &[&str]| {
        let options = ["--connect-timeout", "1s"];
        let output = finish(with(&urls, &[command, &options].concat())).await;
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        text(&output.stdout)
    };
    let shown = look(&["show", "nightly"]).await;
    assert!(
        shown.starts_with("nightly: unknown, because too few nodes answered; keys of billing on "),
        "{shown}"
    );
    assert!(shown.contains(": owner "), "{shown}");
    let listed = look(&["locks"]).await;
    assert!(listed.starts_with("nightly: unknown"), "{listed}");
    holder.child.kill().await.unwrap();
}

/// A quorum of nodes says that there is no lock. Two of these have lost it.
#[tokio::test]
async fn nodes_that_may_have_forgotten_locks_are_named() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let mut held = holds(&urls, "billing", "r").await;
    let [_, lost @ ..] = testbed.nodes() else {
        unreachable!()
    };
    assert_eq!(
        finish(with(&urls, &["show", "other"])).await.status.code(),
        Some(0)
    );
    for node in lost {
        node.kill().await.unwrap();
        node.restart(Data::Wipe).await.unwrap();
    }
    for command in [&["show", "other"][..], &["locks"]] {
        let output = finish(with(&urls, command)).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("may have forgotten locks: "), "{said}");
    }
    held.close_input();
    held.end().await;
}
