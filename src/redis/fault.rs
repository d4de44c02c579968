//! What goes wrong on a node, by its right name (R5).

use std::sync::Arc;

use fred::error::{Error, ErrorKind};

use crate::node::{Fault, Unfit};

/// As much of an unknown error reply as goes into a message.
const LONGEST_MESSAGE: usize = 200;

/// What a lock needs of a user with restricted rights.
const NEEDS: &str = "+evalsha +eval +script|load +info +config|get +time +set +get +mget +del +incr +incrby +pexpire +pttl +publish +subscribe +unsubscribe +pubsub|numsub, and ~<prefix>* &<prefix>* for keys and channels";

/// What the transport reports: error replies, and failures of its own.
pub(super) fn from_error(error: &Error) -> Fault {
    match error.kind() {
        // The lane's time-out: nothing has come back for several budgets.
        ErrorKind::Timeout => Fault::ConnectionLost {
            reason: Arc::from("no answer for too long"),
        },
        ErrorKind::IO | ErrorKind::Canceled => Fault::ConnectionLost {
            reason: reason(error),
        },
        _ => named(error.details()).unwrap_or_else(|| unknown(error)),
    }
}

/// The transport's words for a person: it prints an I/O error with all its Rust around it.
pub(super) fn reason(error: &Error) -> Arc<str> {
    let details = error.details();
    short(plain(details))
}

/// The words in `Os { code: .., kind: .., message: "words" }` and `Custom { kind: .., error: words }`.
fn plain(details: &str) -> &str {
    let of_os = || {
        let (_, rest) = details.split_once("message: \"")?;
        rest.split_once('"').map(|(text, _)| text)
    };
    let custom = || {
        let (_, rest) = details.strip_prefix("Custom {")?.split_once("error: ")?;
        Some(rest.strip_suffix('}')?.trim().trim_matches('"'))
    };
    of_os().or_else(custom).unwrap_or(details)
}

fn unknown(error: &Error) -> Fault {
    // The transport's own words for a command that died with its connection.
    let details = error.details();
    if ["channel closed", "not initialized", "send command to router"]
        .iter()
        .any(|text| details.contains(text))
    {
        return Fault::ConnectionLost {
            reason: short(error.details()),
        };
    }
    match error.kind() {
        ErrorKind::Protocol | ErrorKind::Parse => Fault::Protocol {
            detail: short(error.details()),
        },
        _ => Fault::Server {
            message: short(error.details()),
        },
    }
}

/// How Redis 6 and 7.0 say NOPERM of a command in a script.
const NOT_IN_SCRIPTS: &str = "ERR The user executing the script can't ";

/// An error reply to one request of a batch.
pub(super) fn from_message(message: &str) -> Fault {
    named(message).unwrap_or_else(|| Fault::Server {
        message: short(message),
    })
}

/// The fault that a server's error code stands for.
///
/// The code is the first word. Before Redis 7, errors inside a script came wrapped ("ERR Error running script (..):
/// @user_script:3: -OOM command .."); there it is the first word behind the last line number. Anywhere else, it could be a
/// lock's name.
fn named(message: &str) -> Option<Fault> {
    let inner = match message.split_once("@user_script:") {
        Some((_, behind)) if message.starts_with("ERR Error") => {
            behind.split_once(": ").map_or("", |(_, text)| text)
        }
        _ => message,
    };
    if inner.trim_start_matches('-').starts_with(NOT_IN_SCRIPTS) {
        return Some(Fault::NoPermission { needs: NEEDS });
    }
    let code = inner
        .trim_start_matches('-')
        .split(' ')
        .next()
        .unwrap_or_default();
    Some(match code {
        "WRONGTYPE" => Fault::WrongType,
        "OOM" => Fault::OutOfMemory,
        "READONLY" => Fault::ReadOnly,
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

/// What may be shown of a message. Servers quote the arguments of a command they do not know, and with them tokens.
pub(super) fn short(message: &str) -> Arc<str> {
    let message = message
        .split(", with args beginning with")
        .next()
        .unwrap_or_default();
    match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]).into(),
        None => message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_recognised_plain_and_wrapped_by_older_servers() {
        let cases = [
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Fault::WrongType,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Fault::OutOfMemory,
            ),
            (
                "ERR Error running script (call to f_ab12): @user_script:3: -OOM command not allowed",
                Fault::OutOfMemory,
            ),
            (
                "READONLY You can't write against a read only replica.",
                Fault::ReadOnly,
            ),
            ("LOADING Redis is loading the dataset in memory", Fault::Loading),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                Fault::CannotPersist,
            ),
            ("BUSY Redis is busy running a script.", Fault::Busy),
            ("NOAUTH Authentication required.", Fault::Auth { code: "NOAUTH" }),
            ("CLUSTERDOWN The cluster is down", Fault::ClusterDown),
            (
                "ERR The user executing the script can't run this command or subcommand",
                Fault::NoPermission { needs: NEEDS },
            ),
            ("NOSCRIPT No matching script.", Fault::NoScript),
            ("MOVED 3999 127.0.0.1:6381", Fault::Unfit(Unfit::ClusterMember)),
        ];
        for (message, fault) in cases {
            assert_eq!(from_message(message), fault, "{message}");
        }
    }

    #[test]
    fn unknown_errors_keep_their_text_but_no_arguments_nor_their_length() {
        let message =
            "ERR unknown command 'EVALSHA', with args beginning with: 'sha' '1' 'key' 'a57938a90-token'";
        let Fault::Server { message } = from_message(message) else {
            panic!("not a server error")
        };
        assert_eq!(&*message, "ERR unknown command 'EVALSHA'");
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
            "",
        ] {
            assert!(named(message).is_none(), "{message}");
        }
    }
}
