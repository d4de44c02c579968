//! Passwords from a file or a command.

use std::process::{Output, Stdio};

use quorlock::{Credentials, CredentialsProvider};
use tokio::process::{Child, Command};

use crate::args::Nodes;
use crate::orphans;

/// Returns the provider of passwords that the options name. `None` if they name none: URLs contain the passwords.
pub(crate) fn provider(nodes: &Nodes) -> Option<CredentialsProvider> {
    let file = nodes.password_file.clone().map(CredentialsProvider::file);
    file.or_else(|| nodes.credentials_command.clone().map(command))
}

fn command(script: String) -> CredentialsProvider {
    CredentialsProvider::from_fn(move || {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&script).kill_on_drop(true);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        async move {
            let failed = |error| format!("sh: {error}");
            let (child, _awaited) = orphans::spawn(|| command.spawn(), Child::id).map_err(failed)?;
            let ended = child.wait_with_output().await.map_err(failed)?;
            read(&ended).map_err(|reason| format!("--credentials-command: {reason}"))
        }
    })
}

/// Reads a command's output: the password in the first line and, if there is a second one, how long it is valid.
fn read(ended: &Output) -> Result<Credentials, String> {
    if !ended.status.success() {
        let stderr = String::from_utf8_lossy(&ended.stderr);
        return Err(format!("{}: {}", ended.status, stderr.trim()));
    }
    // Messages must not contain the output.
    let text = str::from_utf8(&ended.stdout).map_err(|_| "the output is not UTF-8")?;
    let mut lines = text.lines();
    let password = lines.next().filter(|line| !line.is_empty());
    let credentials = Credentials::password(password.ok_or("no password in the first line")?);
    Ok(
        match lines.next().map(str::trim).filter(|line| !line.is_empty()) {
            Some(text) => {
                let valid_for = humantime::parse_duration(text);
                credentials.valid_for(valid_for.map_err(|_| "the second line is no duration such as 15m")?)
            }
            None => credentials,
        },
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::*;

    fn printed(code: i32, stdout: &str, stderr: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        }
    }

    #[test]
    fn the_first_line_is_the_password_and_the_second_how_long_it_is_valid() {
        let alone = Credentials::password("a b");
        let for_minutes = alone.clone().valid_for(Duration::from_secs(900));
        assert_eq!(read(&printed(0, "a b\n", "")), Ok(alone.clone()));
        assert_eq!(read(&printed(0, "a b", "a warning")), Ok(alone));
        assert_eq!(read(&printed(0, "a b\n15m\n", "")), Ok(for_minutes));
    }

    #[test]
    fn messages_do_not_contain_the_password() {
        for (output, reason) in [
            (printed(3, "SECRET\n", "no token\n"), "exit status: 3: no token"),
            (printed(0, "", ""), "no password"),
            (printed(0, "\n15m\n", ""), "no password"),
            (printed(0, "SECRET\nSECRET\n", ""), "no duration"),
        ] {
            let error = read(&output).unwrap_err();
            assert!(error.contains(reason) && !error.contains("SECRET"), "{error}");
        }
    }
}
