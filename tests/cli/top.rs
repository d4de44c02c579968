//! Nodes and locks on a terminal, and without one.

use std::fs;
use std::num::NonZeroU16;
use std::process::Stdio;

use quorlock::testbed::Testbed;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{PATIENCE, eventually, finish, holder, json, program, text, with};
use crate::terminal::Terminal;

const ROWS: NonZeroU16 = NonZeroU16::new(24).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(80).unwrap();
const SIX: NonZeroU16 = NonZeroU16::new(6).unwrap();
const TWENTY: NonZeroU16 = NonZeroU16::new(20).unwrap();

fn on_a_terminal(urls: &[String]) -> Terminal {
    let nodes = urls.join(",");
    let script = format!("stty rows {ROWS} cols {COLUMNS}; exec \"$QUORLOCK\" top --every 200ms");
    let command = ["sh", "-c", &script];
    Terminal::start(&command, |command: &mut Command| {
        command.env("QUORLOCK", env!("CARGO_BIN_EXE_quorlock"));
        command.env("QUORLOCK_NODES", nodes).env("TERM", "xterm");
        command
            .env("QUORLOCK_LOG", "trace")
            .env("QUORLOCK_CONNECT_TIMEOUT", "30m");
    })
}

#[tokio::test]
async fn a_lock_is_found_and_broken() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut other = holder(&urls, "another").await;
    let held = holder(&urls, "nightly").await;
    let mut terminal = on_a_terminal(&urls);
    let mut screen = vt100::Parser::new(ROWS, COLUMNS, 0);
    terminal.draws(&mut screen, "quorum").await;
    terminal.draws(&mut screen, "nightly").await;
    terminal.press("/nightl");
    terminal.draws(&mut screen, "with: nightl_").await;
    terminal.press("\r");
    terminal.draws(&mut screen, "q quit").await;
    assert!(!screen.screen().contents().contains("another"));
    terminal.press("b");
    terminal.draws(&mut screen, "[y/N] break nightly?").await;
    terminal.press("n");
    terminal.draws(&mut screen, "not broken").await;
    terminal.press("b");
    terminal.draws(&mut screen, "[y/N] break nightly?").await;
    terminal.press("y");
    terminal
        .draws(&mut screen, "broken: deleted on 3 of 3 nodes: nightly")
        .await;
    // The lease was broken, so its command was ended.
    assert_eq!(held.end().await.0, Some(79));
    testbed.nodes()[0].kill().await.unwrap();
    terminal.draws(&mut screen, "not connected").await;
    // The log would disturb the screen.
    let shown = screen.screen().contents();
    assert!(
        !shown.contains("out of reach") && !shown.contains("quorlock::"),
        "{shown}"
    );
    terminal.press("q");
    let (status, rest) = terminal.end().await;
    assert!(status.success(), "{status}");
    // The screen from before is back.
    screen.process(rest.as_bytes());
    assert!(!screen.screen().alternate_screen(), "{rest:?}");
    other.close_input();
    other.end().await;
}

#[tokio::test]
async fn the_terminal_is_as_before_afterwards() {
    let testbed = Testbed::start(1).await.unwrap();
    let nodes = testbed.urls().join(",");
    let script = "stty rows 24 cols 80; before=$(stty -g); \"$QUORLOCK\" top; [ \"$before\" = \"$(stty -g)\" ] && echo as before";
    let mut terminal = Terminal::start(&["sh", "-c", script], |command| {
        command.env("QUORLOCK", env!("CARGO_BIN_EXE_quorlock"));
        command.env("QUORLOCK_NODES", nodes).env("TERM", "xterm");
    });
    terminal.shows("up").await;
    terminal.press("\x03");
    terminal.shows("as before").await;
    terminal.end().await;
}

/// A name of 100 letters, on 80 columns.
#[tokio::test]
async fn a_long_name_hides_neither_the_holder_nor_the_question() {
    let testbed = Testbed::start(1).await.unwrap();
    let urls = testbed.urls();
    let name = format!("begin:{}:end", "0123456789".repeat(9));
    let mut held = holder(&urls, &name).await;
    let mut terminal = on_a_terminal(&urls);
    let mut screen = vt100::Parser::new(ROWS, COLUMNS, 0);
    terminal.draws(&mut screen, "9:end ").await;
    let shown = screen.screen().contents();
    let row = shown.lines().find(|row| row.contains("9:end ")).unwrap();
    assert!(
        row.starts_with("begin:0123") && row.contains("(pid ") && row.ends_with(')'),
        "{row}"
    );
    terminal.press("b");
    terminal.draws(&mut screen, "if it hangs").await;
    let joined = screen.screen().contents().replace('\n', "");
    assert!(joined.contains(&format!("[y/N] break {name}? Its")), "{joined}");
    terminal.press("n");
    terminal.draws(&mut screen, "not broken").await;
    // Too small for the question.
    terminal.resize(SIX.get(), TWENTY.get());
    screen.screen_mut().set_size(SIX, TWENTY);
    // Keys that come together with a change of the size may wait for the next key.
    terminal.draws(&mut screen, "EXPIR NODES").await;
    terminal.press("b");
    terminal.draws(&mut screen, "enlarge the window f").await;
    terminal.resize(ROWS.get(), COLUMNS.get());
    screen.screen_mut().set_size(ROWS, COLUMNS);
    terminal.draws(&mut screen, "EXPIRES").await;
    terminal.press("/nowhere\r");
    terminal.draws(&mut screen, "none with: nowhere").await;
    terminal.press("q");
    assert!(terminal.end().await.0.success());
    held.close_input();
    held.end().await;
}

#[tokio::test]
async fn a_key_ends_it_while_it_connects() {
    let testbed = Testbed::start(1).await.unwrap();
    let urls = testbed.urls();
    testbed.nodes()[0].kill().await.unwrap();
    let mut terminal = on_a_terminal(&urls);
    let mut screen = vt100::Parser::new(ROWS, COLUMNS, 0);
    terminal.draws(&mut screen, "connecting to the nodes").await;
    terminal.press("q");
    assert!(terminal.end().await.0.success());
}

#[tokio::test]
async fn without_a_terminal_it_prints_once() {
    let testbed = Testbed::start(3).await.unwrap();
    let urls = testbed.urls();
    let mut held = holder(&urls, "nightly").await;
    let output = finish(with(&urls, &["top"])).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        said.contains("3 of 3 nodes up, 2 needed: quorum\n1 lock held\nnightly: held by "),
        "{said}"
    );
    let document = json(&urls, &["top"]).await;
    assert_eq!(document["status"]["verdict"], "quorum");
    assert_eq!(document["locks"][0]["resource"], "nightly");
    held.close_input();
    held.end().await;
}

#[tokio::test]
async fn a_long_list_says_that_there_is_more() {
    let testbed = Testbed::start(1).await.unwrap();
    let urls = testbed.urls();
    // Prepares the node.
    assert!(
        finish(with(&urls, &["run", "first", "--", "true"]))
            .await
            .status
            .success()
    );
    for number in 0..201 {
        let key = format!("quorlock:{number}");
        let set = ["SET", &key, "data", "PX", "100000"];
        testbed.nodes()[0].command(&set).await.unwrap();
    }
    let document = json(&urls, &["top"]).await;
    assert_eq!(document["locks"].as_array().unwrap().len(), 200);
    assert_eq!(document["has_more"], true, "{document}");
    assert_eq!(document["held"], 201, "{document}");
}

/// As if the connection to the host had broken. `script` has the terminal, and is killed; the tool ignores that it is hung up on.
#[tokio::test]
async fn it_ends_with_an_error_when_the_terminal_is_gone() {
    let testbed = Testbed::start(1).await.unwrap();
    let file = testbed.folder().join("status");
    let words = r#"trap "" HUP; stty rows 24 cols 80; "$QUORLOCK" top; echo $? >"$FILE""#;
    let mut script = program("script", &testbed.urls());
    script.args(["--quiet", "--flush", "--command", words, "/dev/null"]);
    script
        .env("QUORLOCK", env!("CARGO_BIN_EXE_quorlock"))
        .env("FILE", &file);
    script.env("TERM", "xterm").env("SHELL", "/bin/sh");
    let mut script = script
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = script.stdout.take().unwrap();
    let mut shown = vt100::Parser::new(ROWS, COLUMNS, 0);
    let draws = async {
        while !shown.screen().contents().contains("q quit") {
            let mut more = Vec::new();
            assert_ne!(screen.read_buf(&mut more).await.unwrap(), 0);
            shown.process(&more);
        }
    };
    timeout(PATIENCE, draws).await.unwrap();
    script.kill().await.unwrap();
    eventually("the tool has ended", async || {
        fs::read_to_string(&file).is_ok_and(|status| status.ends_with('\n'))
    })
    .await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "71\n");
}
