//! Completions and manual pages.

use std::fs;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::{finish, text, with};

async fn printed(arguments: &[&str]) -> String {
    let output = finish(with(&[], arguments)).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the commands in the help.
async fn commands() -> Vec<String> {
    let help = printed(&["--help"]).await;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let first = |line: &str| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned);
    let lines = list.lines().take_while(|line| !line.is_empty()).filter_map(first);
    let commands: Vec<String> = lines
        .filter(|command| !command.is_empty() && command != "help")
        .collect();
    assert!(
        commands.contains(&"run".to_owned()) && commands.len() > 10,
        "{help}"
    );
    commands
}

/// What a bash with these completions offers behind the words.
async fn offered(completions: &str, words: &str) -> Vec<String> {
    let mut bash = Command::new("bash")
        .args(["--norc", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let count = words.split(' ').count();
    let script = format!(
        "{completions}\nCOMP_WORDS=({words} \"\") COMP_CWORD={count}
        [ \"$(complete -p quorlock)\" ] || exit\n_quorlock quorlock '' {}
        printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words.split(' ').next_back().unwrap()
    );
    bash.stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .await
        .unwrap();
    let output = bash.wait_with_output().await.unwrap();
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn bash_offers_commands_and_options() {
    let completions = printed(&["completions", "bash"]).await;
    let offers = offered(&completions, "quorlock").await;
    for command in commands().await {
        assert!(offers.contains(&command), "{command}: {offers:?}");
    }
    // The guard is for `run` alone.
    assert!(!offers.contains(&"guard".to_owned()), "{offers:?}");
    let options = offered(&completions, "quorlock run").await;
    assert!(options.iter().any(|offer| offer == "--key-prefix"), "{options:?}");
}

#[tokio::test]
async fn every_shell_has_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let completions = printed(&["completions", shell]).await;
        assert!(completions.contains("key-prefix"), "{shell}");
        assert!(!completions.contains("sEcReT"));
    }
    assert_eq!(
        finish(with(&[], &["completions", "sh"])).await.status.code(),
        Some(2)
    );
}

#[tokio::test]
async fn every_command_has_a_manual_page_with_all_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let mut write = with(
        &["redis://:sEcReT@h".to_owned()],
        &["man", pages.to_str().unwrap()],
    );
    write.env("QUORLOCK_TTL", "1234s");
    assert_eq!(finish(write).await.status.code(), Some(0));
    let mut found: Vec<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    let commands = commands().await;
    let mut expected: Vec<String> = commands
        .iter()
        .map(|command| format!("quorlock-{command}.1"))
        .collect();
    expected.push("quorlock.1".to_owned());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);

    assert_eq!(
        printed(&["man"]).await,
        fs::read_to_string(pages.join("quorlock.1")).unwrap()
    );
    for command in &commands {
        let page = pages.join(format!("quorlock-{command}.1"));
        let shown = match Command::new("groff")
            .args(["-man", "-Tascii", "-P-cbou"])
            .arg(&page)
            .output()
            .await
        {
            Ok(groff) => {
                assert!(
                    groff.status.success() && groff.stderr.is_empty(),
                    "{}",
                    text(&groff.stderr)
                );
                text(&groff.stdout)
            }
            // Without groff, the source.
            Err(_) => fs::read_to_string(&page).unwrap().replace("\\-", "-"),
        };
        assert!(!shown.contains("sEcReT") && !shown.contains("1234s"), "{shown}");
        let help = printed(&[command, "--help"]).await;
        for option in help
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("--"))
        {
            let option = option.split([' ', '.', '[', '=']).next().unwrap();
            assert!(
                shown.contains(&format!("--{option}")),
                "{command} --{option}: {shown}"
            );
        }
    }
}
