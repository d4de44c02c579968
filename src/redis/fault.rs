//! Turns errors of servers and sockets into named faults (R5).

use std::io;
use std::sync::Arc;

use crate::node::{Fault, Unfit};

/// Most characters of an unknown error reply that a message shows.
const LONGEST_MESSAGE: usize = 200;

/// The rights that a restricted user needs, as the README prints them.
const NEEDS: &str = "resetchannels ~<prefix>* &<prefix>* +evalsha +eval +script|load +info +config|get +time +set +get +mget +del +incr +incrby +pexpire +persist +pttl +publish +subscribe +unsubscribe +ping +client|id +client|setname";

/// Returns the fault for an error of the socket.
pub(super) fn from_io(error: &io::Error) -> Fault {
    // The system's text ends in "(os error 104)".
    let words = error.to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    Fault::ConnectionLost { reason: short(words) }
}

/// Turns `ConnectionLost` into `Disconnected`: nothing was in flight that could set a key.
pub(super) fn as_disconnected(fault: Fault) -> Fault {
    match fault {
        Fault::ConnectionLost { reason } => Fault::Disconnected { reason },
        named => named,
    }
}

pub(super) fn disconnected(reason: Arc<str>) -> Fault {
    Fault::Disconnected { reason }
}

/// Returns the fault for a failed script of the probe. A server that does not know the command may not vote.
pub(super) fn of_first_script(fault: Fault) -> Fault {
    match fault {
        Fault::Server { message } if message.starts_with("ERR unknown command") => {
            Fault::Unfit(Unfit::NoScripts { reply: message })
        }
        named => as_disconnected(named),
    }
}

/// The texts for NOPERM of a command in a script: of Redis 6.2 (without the ERR) and 7.0, then of all others.
const FORBIDDEN_IN_SCRIPT: [&str; 2] = ["The user executing the script can't ", "ACL failure in script: "];

/// Returns the fault that an error reply stands for.
pub(super) fn from_message(message: &str) -> Fault {
    named(message).unwrap_or_else(|| Fault::Server {
        message: short(message),
    })
}

/// Returns the fault that a server's error code stands for. `None` for an unknown code.
///
/// The code is the first word. Anywhere else, that word could come from a lock's name.
pub(super) fn named(message: &str) -> Option<Fault> {
    let error = strip_script_prefix(message);
    let text = error.strip_prefix("ERR ").unwrap_or(error);
    if FORBIDDEN_IN_SCRIPT.iter().any(|words| text.starts_with(words)) {
        return Some(Fault::NoPermission { needs: NEEDS });
    }
    let code = error.split(' ').next().unwrap_or_default();
    Some(match code {
        "WRONGTYPE" => Fault::WrongType,
        "OOM" => Fault::OutOfMemory,
        "READONLY" => Fault::ReadOnly,
        "MASTERDOWN" => Fault::MasterDown,
        "NOREPLICAS" => Fault::NoReplicas,
        "LOADING" => Fault::Loading,
        "MISCONF" => Fault::CannotPersist,
        "BUSY" => Fault::Busy,
        "NOAUTH" => Fault::Auth { code: "NOAUTH" },
        "WRONGPASS" => Fault::Auth { code: "WRONGPASS" },
        "NOPERM" => Fault::NoPermission { needs: NEEDS },
        "CLUSTERDOWN" => Fault::ClusterDown,
        "NOSCRIPT" => Fault::NoScript,
        "MOVED" | "ASK" | "CROSSSLOT" => Fault::Unfit(Unfit::ClusterMember),
        _ => return None,
    })
}

/// Removes what Redis before version 7 puts in front of an error in a script: `@user_script: 94: -` in the text that
/// `redis.pcall` gives, and `ERR Error running script (call to f_<digest>): @user_script:94: ` in the reply to the script.
fn strip_script_prefix(message: &str) -> &str {
    let raised = message
        .strip_prefix("ERR Error running script (call to f_")
        .and_then(|rest| rest.split_once("): ")?.1.strip_prefix("@user_script:"))
        .and_then(behind_line);
    let error = raised.unwrap_or(message);
    let caught = error.strip_prefix("@user_script: ").and_then(behind_line);
    caught.unwrap_or(error).trim_start_matches('-')
}

/// Returns the text behind a line number and a colon. `None` without them.
fn behind_line(text: &str) -> Option<&str> {
    let (line, rest) = text.split_once(": ")?;
    line.bytes().all(|byte| byte.is_ascii_digit()).then_some(rest)
}

/// Returns what may be shown of a message. Servers quote the arguments of an unknown command, which include owner tokens.
pub(super) fn short(message: &str) -> Arc<str> {
    let message = message
        .split(", with args beginning with")
        .next()
        .unwrap_or_default()
        .trim_end();
    match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]).into(),
        None => message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collected from real servers. tests/transport/faults.rs provokes them on the installed server.
    #[test]
    fn the_errors_of_all_servers_have_their_names() {
        let mut seen = 0;
        for sample in include_str!("fault_samples.tsv")
            .lines()
            .filter(|line| !line.starts_with('#'))
        {
            let columns: Vec<&str> = sample.split('\t').collect();
            let [name, _situation, _servers, message] = columns[..] else {
                panic!("not four columns: {sample}")
            };
            let fault = format!("{:?}", from_message(message));
            assert_eq!(fault.split(' ').next(), Some(name), "{message}");
            seen += 1;
        }
        assert!(seen > 80);
    }

    /// The samples have no redirections: their servers are in no cluster.
    #[test]
    fn redirections_are_those_of_a_cluster() {
        for message in [
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "CROSSSLOT Keys",
        ] {
            assert_eq!(from_message(message), Fault::Unfit(Unfit::ClusterMember));
        }
    }

    #[test]
    fn the_readme_prints_the_rights_that_are_needed() {
        let rights = NEEDS.replace("<prefix>", "quorlock:");
        let readme = include_str!("../../README.md");
        assert!(readme.lines().any(|line| line.trim() == rights), "{rights}");
    }

    #[test]
    fn unknown_errors_keep_their_text_but_no_arguments_nor_their_length() {
        let message =
            "ERR unknown command 'EVALSHA', with args beginning with: 'sha' '1' 'key' 'a57938a90-token'";
        let Fault::Server { message } = from_message(message) else {
            panic!("not a server error")
        };
        assert_eq!(&*message, "ERR unknown command 'EVALSHA'");
        let Fault::Server { message } = from_message("@user_script: 94: an error that Redis 6.2 ends so\r\n")
        else {
            panic!()
        };
        assert!(message.ends_with("ends so"));
        let Fault::Server { message } = from_message(&"ä".repeat(10_000)) else {
            panic!()
        };
        assert_eq!(message.chars().count(), LONGEST_MESSAGE + 3);
    }

    #[test]
    fn a_code_anywhere_else_is_not_one() {
        for message in [
            "ERR your ROOM is BUSYNESS",
            "ERR unknown command 'SET', with args beginning with: 'OOM' ",
            "ERR unknown key OOM and NOAUTH",
            "ERR unknown command '@user_script: 1: -OOM'",
            "ERR Error running script (call to f_ab12): @user_script:3: @user_script: lock: -READONLY",
            "ERR Error running script (call to f_ab12): lock: @user_script:3: READONLY",
            "ERR lock @user_script:3: READONLY",
            "lock @user_script: 3: -READONLY",
            "@user_script:lock: 3: -READONLY",
            "",
        ] {
            assert!(named(message).is_none(), "{message}");
        }
    }
}
