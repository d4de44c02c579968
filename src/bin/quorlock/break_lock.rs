//! `quorlock break`: takes a lock away from its holder.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

use quorlock::node::{Fault, OwnerToken, Reply};
use quorlock::{LockStatus, NodeVote, Redlock, Votes};
use serde_json::json;

use crate::args::Break;
use crate::exit::{self, Failure};
use crate::nodes::connect;
use crate::out;
use crate::report::{Report, escape_control_characters};
use crate::show::text;

pub(crate) async fn break_lock(arguments: Break, report: &Report) -> Result<u8, Failure> {
    let given = arguments.owner.as_deref().map(owner).transpose()?;
    let redlock = connect(&arguments.existing).await?;
    let owner = match given {
        Some(owner) => owner,
        None => match confirmed(&redlock, &arguments.resource, report).await? {
            Some(owner) => owner,
            None => return Ok(exit::OK),
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
            let mut lines = vec![format!("{resource}: {}", outcome.words(&votes))];
            let node = |vote: &NodeVote| format!("  {}: {}", vote.node, words(vote.answer.as_ref()));
            lines.extend(votes.iter().map(node));
            let line = |line: &String| escape_control_characters(line) + "\n";
            lines.iter().map(line).collect()
        },
    )?;
    Ok(outcome.code())
}

fn owner(text: &str) -> Result<OwnerToken, Failure> {
    OwnerToken::from_value(text).ok_or_else(|| {
        Failure::usage("--owner is not an owner token: give the 36 characters that `quorlock show` prints")
    })
}

/// Shows the holder, and asks whether to go on. Returns its owner token; `None` if there is nothing to break, or the answer is no.
async fn confirmed(
    redlock: &Redlock,
    resource: &str,
    report: &Report,
) -> Result<Option<OwnerToken>, Failure> {
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
            let document = || json!({"resource": resource, "owner": null, "outcome": Outcome::Nothing.name(), "nodes": []});
            out::print(report, document, || text(&lock))?;
            return Ok(None);
        }
        (_, None) => {
            return Err(Failure::usage(format!(
                "{resource:?} holds no owner token, so quorlock does not delete it: find out whose data it is, then DEL its key on \
                 each node (`quorlock show` names them)"
            )));
        }
    };
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "not on a terminal, so nobody can be asked: look at `quorlock show {resource}`, and give its owner with --owner"
        )));
    }
    let question = format!(
        "{}A holder that runs ends its work at once, or within a second if it has just begun. A holder that hangs may go on to write when it wakes up.\nBreak it? [y/N] ",
        text(&lock)
    );
    // On a thread of its own: the connections go on meanwhile.
    if tokio::task::spawn_blocking(move || ask(&question))
        .await
        .unwrap_or(false)
    {
        return Ok(Some(owner));
    }
    let _ = writeln!(stderr(), "not broken");
    Ok(None)
}

fn ask(question: &str) -> bool {
    let mut out = stderr().lock();
    let _ = out.write_all(question.as_bytes());
    let _ = out.flush();
    let mut answer = String::new();
    let read = stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Whether a break has deleted the lock's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A quorum of nodes has deleted the key, or had none.
    Broken,
    /// A quorum of nodes had no key, and none had this owner's.
    Nothing,
    /// Too many nodes hold another owner's key.
    OtherOwner,
    /// Too few nodes answered.
    Unclear,
}

impl Outcome {
    pub(crate) fn of(votes: &Votes) -> Outcome {
        let count = |is: fn(&Reply) -> bool| {
            let answers = votes
                .iter()
                .filter_map(|vote| vote.answer.as_ref()?.as_ref().ok());
            answers.filter(|reply| is(reply)).count()
        };
        let gone = count(|reply| matches!(reply, Reply::Released { .. } | Reply::Missing));
        let other = count(|reply| matches!(reply, Reply::Foreign));
        match votes.quorum() {
            quorum if gone >= quorum && votes.yes() == 0 => Outcome::Nothing,
            quorum if gone >= quorum => Outcome::Broken,
            quorum if votes.iter().count() - other < quorum => Outcome::OtherOwner,
            _ => Outcome::Unclear,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Outcome::Broken => "broken",
            Outcome::Nothing => "nothing_to_break",
            Outcome::OtherOwner => "other_owner",
            Outcome::Unclear => "unclear",
        }
    }

    pub(crate) fn words(self, votes: &Votes) -> String {
        let (deleted, nodes) = (votes.yes(), votes.iter().count());
        match self {
            Outcome::Nothing => "there was nothing to break: no node has this owner's key".to_owned(),
            Outcome::Broken => format!("broken: deleted on {deleted} of {nodes} nodes"),
            Outcome::OtherOwner => {
                "not broken: another owner holds it by now; look again with `quorlock show`".to_owned()
            }
            Outcome::Unclear => format!(
                "not known to be broken: deleted on {deleted} of {nodes} nodes, {} needed. Break it again: until a quorum has \
                 deleted it, a running holder sets its key again",
                votes.quorum()
            ),
        }
    }

    fn code(self) -> u8 {
        match self {
            Outcome::Broken | Outcome::Nothing => exit::OK,
            Outcome::OtherOwner => exit::HELD,
            Outcome::Unclear => exit::NO_QUORUM,
        }
    }
}

fn node_document(node: &str, answer: Option<&Result<Reply, Fault>>) -> serde_json::Value {
    match answer {
        Some(Err(trouble)) => {
            json!({"node": node, "outcome": null, "reason": trouble.kind(), "trouble": trouble.to_string()})
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
