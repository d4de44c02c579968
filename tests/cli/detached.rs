//! Locks that outlive a process: acquired, extended and released by steps of a script.

use std::process::Stdio;

use serde_json::Value;
use tokio::time::timeout;

use crate::support::{PATIENCE, finish, free, program, text, with};
use crate::testbed;

#[tokio::test]
async fn a_lock_is_acquired_extended_and_released_by_three_processes() {
    let testbed = testbed().await;
    let urls = testbed.urls();
    let acquired = finish(with(&urls, &["acquire", "--json", "--ttl", "20s", "deploy:prod"])).await;
    assert_eq!(acquired.status.code(), Some(0), "{}", text(&acquired.stderr));
    let acquired: Value = serde_json::from_slice(&acquired.stdout).unwrap();
    assert_eq!(acquired["resource"], "deploy:prod");
    assert!(acquired["valid_ms"].as_u64().unwrap() <= 20_000);
    let handle = acquired["handle"].as_str().unwrap();

    // The process has ended. Its lock and its name have stayed.
    let shown = finish(with(&urls, &["show", "--json", "deploy:prod"])).await;
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(
        (&shown["status"], &shown["owner"]),
        (&"held".into(), &acquired["owner"])
    );
    assert_eq!(shown["holder"]["name"], "a handle of quorlock acquire");
    let refused = finish(with(&urls, &["acquire", "--no-wait", "-E", "9", "deploy:prod"])).await;
    assert_eq!((refused.status.code(), &*text(&refused.stdout)), (Some(9), ""));

    let extended = finish(with(&urls, &["extend", "--json", handle])).await;
    assert_eq!(extended.status.code(), Some(0), "{}", text(&extended.stderr));
    let extended: Value = serde_json::from_slice(&extended.stdout).unwrap();
    assert_eq!(extended["fencing_token"], acquired["fencing_token"]);

    // The handle may come from the environment, where other users do not see it.
    let mut release = with(&urls, &["release"]);
    release.env("QUORLOCK_HANDLE", handle);
    let released = finish(release).await;
    let said = text(&released.stdout) + &text(&released.stderr);
    assert_eq!(
        (released.status.code(), &*said),
        (Some(0), "deploy:prod: released\n")
    );
    free(&testbed).await;

    for (command, said) in [("extend", "lost"), ("release", "already gone")] {
        let late = finish(with(&urls, &[command, handle])).await;
        let text = text(&late.stdout) + &text(&late.stderr);
        assert_eq!(late.status.code(), Some(79), "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[tokio::test]
async fn a_shell_uses_what_acquire_exports() {
    let testbed = testbed().await;
    let own = env!("CARGO_BIN_EXE_quorlock");
    let script = format!(
        "eval \"$({own} acquire --export \"it's mine\")\" && echo \"$QUORLOCK_RESOURCE $QUORLOCK_FENCING_TOKEN\" && {own} release"
    );
    let mut shell = program("sh", &testbed.urls());
    shell.args(["-c", &script]);
    let output = finish(shell).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    let (first, second) = said.trim().split_once('\n').unwrap();
    let token = first.strip_prefix("it's mine ").unwrap();
    assert!(token.parse::<u64>().unwrap() > 0);
    assert_eq!(second, "it's mine: released");
    free(&testbed).await;
}

#[tokio::test]
async fn other_texts_are_refused_as_handles() {
    let testbed = testbed().await;
    let output = finish(with(&testbed.urls(), &["release", "me:1:1:r"])).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("OWNER:TOKEN:TTL:NAME"), "{said}");
}

/// Nobody could release such a lock.
#[tokio::test]
async fn a_lock_whose_handle_cannot_be_printed_is_released() {
    let testbed = testbed().await;
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    for stdout in [Stdio::from(full), Stdio::from(closed)] {
        let mut acquire = with(&testbed.urls(), &["acquire", "--ttl", "10m", "job"]);
        let child = acquire.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let output = timeout(PATIENCE, child.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(71), "{said}");
        assert!(
            said.contains("handle") && said.contains("job: released"),
            "{said}"
        );
        free(&testbed).await;
    }
}
