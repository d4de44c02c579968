//! `quorlock break`: takes a lock away from its holder.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

use quorlock::node::{Fault, OwnerToken, Reply};
use quorlock::{Inspection, LockStatus, Redlock, Votes};
use serde_json::json;

use crate::args::Break;
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::show::{connect, text};
use crate::{fault, out};

pub(crate) async fn break_lock(arguments: Break, report: &Report) -> Result<u8, Failure> {
    let given = arguments.owner.as_deref().map(owner).transpose()?;
    let redlock = connect(&arguments.existing).await?;
    let owner = match given {
        Some(owner) => owner,
        None => match confirmed(&redlock, &arguments.resource).await? {
            Confirmed::Owner(owner) => owner,
            Confirmed::End(code) => return Ok(code),
        },
    };
    let votes = redlock
        .break_lock(&arguments.resource, owner)
        .await
        .map_err(Failure::usage)?;
    let outcome = Outcome::of(&votes);
    let resource = &*arguments.resource;
    out::print(
        report,
        || {
            let nodes: Vec<_> = votes
                .iter()
                .map(|vote| node_document(&vote.node, vote.answer.as_ref()))
                .collect();
            json!({"resource": resource, "owner": owner.value(), "outcome": outcome.name(), "nodes": nodes})
        },
        || {
            let mut text = format!("{resource}: {}\n", outcome.words(&votes));
            for vote in votes.iter() {
                text.push_str(&format!("  {}: {}\n", vote.node, words(vote.answer.as_ref())));
            }
            text
        },
    )?;
    Ok(outcome.code())
}

fn owner(text: &str) -> Result<OwnerToken, Failure> {
    OwnerToken::from_value(text).ok_or_else(|| {
        Failure::usage("--owner is not an owner token: give the 36 characters that `quorlock show` prints")
    })
}

enum Confirmed {
    Owner(OwnerToken),
    End(u8),
}

/// Shows the holder, and asks whether to go on.
async fn confirmed(redlock: &Redlock, resource: &str) -> Result<Confirmed, Failure> {
    let lock = redlock.inspect(resource).await.map_err(Failure::usage)?;
    let owner = match (lock.status, lock.owner()) {
        (LockStatus::Unknown, _) => {
            return Err(Failure::new(
                exit::NO_QUORUM,
                "too few nodes answered to tell who holds the lock",
            ));
        }
        (_, Some(owner)) => owner,
        (_, None) if lock.keys() == 0 => {
            eprint!("{}", text(&lock));
            return Ok(Confirmed::End(exit::OK));
        }
        (_, None) => {
            return Err(Failure::usage(
                "the key is no lock of this library: quorlock does not delete it; use redis-cli if that is what you want",
            ));
        }
    };
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "not on a terminal, so nobody can be asked: look at `quorlock show {resource}`, and give its owner with --owner"
        )));
    }
    match ask(&lock) {
        true => Ok(Confirmed::Owner(owner)),
        false => Ok(Confirmed::End(exit::OK)),
    }
}

fn ask(lock: &Inspection) -> bool {
    let mut out = stderr().lock();
    let _ = write!(
        out,
        "{}A holder that is alive loses the lock. One that hangs may go on to write when it wakes up.\nBreak it? [y/N] ",
        text(lock)
    );
    let _ = out.flush();
    let mut answer = String::new();
    let read = stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// What became of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A quorum of nodes has deleted the key, or had none.
    Broken,
    /// Too many nodes hold another owner's key.
    OtherOwner,
    /// Too few nodes answered.
    Unclear,
}

impl Outcome {
    fn of(votes: &Votes) -> Outcome {
        let count = |is: fn(&Reply) -> bool| {
            let answers = votes
                .iter()
                .filter_map(|vote| vote.answer.as_ref()?.as_ref().ok());
            answers.filter(|reply| is(reply)).count()
        };
        let gone = count(|reply| matches!(reply, Reply::Released { .. } | Reply::Missing));
        let other = count(|reply| matches!(reply, Reply::Foreign));
        match votes.quorum() {
            quorum if gone >= quorum => Outcome::Broken,
            quorum if votes.iter().count() - other < quorum => Outcome::OtherOwner,
            _ => Outcome::Unclear,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Outcome::Broken => "broken",
            Outcome::OtherOwner => "other_owner",
            Outcome::Unclear => "unclear",
        }
    }

    fn words(self, votes: &Votes) -> String {
        let (deleted, nodes) = (votes.yes(), votes.iter().count());
        match self {
            Outcome::Broken if deleted == 0 => {
                "there was nothing to break: no node has this owner's key".to_owned()
            }
            Outcome::Broken => format!("broken: deleted on {deleted} of {nodes} nodes"),
            Outcome::OtherOwner => {
                "not broken: another owner holds it by now; look again with `quorlock show`".to_owned()
            }
            Outcome::Unclear => format!(
                "not known to be broken: deleted on {deleted} of {nodes} nodes, {} needed",
                votes.quorum()
            ),
        }
    }

    fn code(self) -> u8 {
        match self {
            Outcome::Broken => exit::OK,
            Outcome::OtherOwner => exit::HELD,
            Outcome::Unclear => exit::NO_QUORUM,
        }
    }
}

fn node_document(node: &str, answer: Option<&Result<Reply, Fault>>) -> serde_json::Value {
    match answer {
        Some(Err(trouble)) => {
            json!({"node": node, "outcome": null, "reason": fault::kind(trouble), "trouble": trouble.to_string()})
        }
        answer => json!({"node": node, "outcome": words(answer)}),
    }
}

fn words(answer: Option<&Result<Reply, Fault>>) -> String {
    match answer {
        Some(Ok(Reply::Released { .. })) => "deleted".to_owned(),
        Some(Ok(Reply::Missing)) => "no key".to_owned(),
        Some(Ok(Reply::Foreign)) => "another owner's key".to_owned(),
        Some(Err(trouble)) => trouble.to_string(),
        Some(Ok(_)) | None => "no answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_given_as_it_is_shown() {
        let shown = OwnerToken::from(7).value();
        assert_eq!(owner(&shown).unwrap(), OwnerToken::from(7));
        assert!(owner("7").unwrap_err().message.contains("36 characters"));
    }
}
