//! What goes wrong on a node, by its right name (R5).

use std::sync::Arc;

use fred::error::{Error, ErrorKind};

use crate::node::{Fault, Request};

/// As much of an unknown error reply as goes into a message.
const LONGEST_MESSAGE: usize = 200;

/// What a lock needs of a user with restricted rights.
const NEEDS: &str =
    "+evalsha +eval +script|load +info +time +set +get +del +pexpire +pttl, and ~<prefix>* for keys";

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
    if error.details().contains("channel closed") || error.details().contains("not initialized") {
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

/// An error reply to one request of a batch.
pub(super) fn from_message(message: &str, request: &Request) -> Fault {
    named(message).unwrap_or_else(|| {
        // The reply may quote its arguments; the token is nobody else's business.
        Fault::Server {
            message: short(&message.replace(&request.owner.value(), "<token>")),
        }
    })
}

/// The fault that a server's error code stands for.
///
/// Before Redis 7, errors inside a script came wrapped ("ERR Error running script ...: -OOM command ..."), so the code
/// is looked for as a word, not only in front.
fn named(message: &str) -> Option<Fault> {
    let code = message.split(|c: char| !c.is_ascii_uppercase()).find(|word| {
        matches!(
            *word,
            "WRONGTYPE"
                | "OOM"
                | "READONLY"
                | "LOADING"
                | "MISCONF"
                | "BUSY"
                | "NOAUTH"
                | "WRONGPASS"
                | "NOPERM"
                | "CLUSTERDOWN"
                | "NOSCRIPT"
                | "MOVED"
                | "ASK"
                | "CROSSSLOT"
        )
    })?;
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
        _ => Fault::Unfit(crate::node::Unfit::ClusterMember),
    })
}

pub(super) fn short(message: &str) -> Arc<str> {
    match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]).into(),
        None => message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Action, OwnerToken};

    fn request() -> Request {
        Request {
            key: "k".into(),
            owner: OwnerToken::random(),
            action: Action::Release,
        }
    }

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
            ("NOSCRIPT No matching script.", Fault::NoScript),
            (
                "MOVED 3999 127.0.0.1:6381",
                Fault::Unfit(crate::node::Unfit::ClusterMember),
            ),
        ];
        for (message, fault) in cases {
            assert_eq!(from_message(message, &request()), fault, "{message}");
        }
    }

    #[test]
    fn unknown_errors_keep_their_text_but_not_the_token_nor_their_length() {
        let request = request();
        let message = format!(
            "ERR something with args beginning with: '{}'",
            request.owner.value()
        );
        let Fault::Server { message } = from_message(&message, &request) else {
            panic!("not a server error")
        };
        assert_eq!(&*message, "ERR something with args beginning with: '<token>'");
        let Fault::Server { message } = from_message(&"ä".repeat(10_000), &request) else {
            panic!()
        };
        assert_eq!(message.chars().count(), LONGEST_MESSAGE + 3);
    }

    #[test]
    fn input_and_output_errors_lose_the_rust_around_them() {
        for (details, words) in [
            (
                "Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }",
                "Connection refused",
            ),
            (
                "Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) }",
                "InvalidCertificate(UnknownIssuer)",
            ),
            (
                "Custom { kind: UnexpectedEof, error: \"tls handshake eof\" }",
                "tls handshake eof",
            ),
            ("Something else.", "Something else."),
        ] {
            assert_eq!(plain(details), words);
        }
    }

    #[test]
    fn a_word_inside_another_is_not_a_code() {
        assert!(named("ERR your ROOM is BUSYNESS").is_none());
    }
}
