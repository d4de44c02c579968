//! `quorlock members`: shows the lists of nodes in use, and their clients.

use std::fmt::Write as _;
use std::sync::Arc;

use quorlock::node::Fault;
use quorlock::{NodeList, Registrations};
use serde_json::{Value, json};

use crate::args::Members;
use crate::exit::{self, Failure};
use crate::format::{counted, millis, short};
use crate::report::Report;
use crate::{nodes, out};

pub(crate) async fn members(arguments: Members, report: &Report) -> Result<u8, Failure> {
    let existing = &arguments.existing;
    let asked = nodes::urls(&existing.nodes)?.len();
    let builder = nodes::builder_for(existing)?;
    let found = builder.registrations().await.map_err(Failure::usage)?;
    out::print(report, || document(&found), || text(&found, asked))?;
    Ok(code(&found, asked))
}

fn code(found: &Registrations, asked: usize) -> u8 {
    match found.lists.len() {
        _ if found.faults.len() == asked => exit::NO_QUORUM,
        _ if found.has_conflict => exit::MISCONFIGURED,
        _ => exit::OK,
    }
}

fn document(found: &Registrations) -> Value {
    let list = |list: &NodeList| {
        json!({
            "nodes": words(&list.nodes), "clients": words(&list.clients), "registered_on": words(&list.registered_on),
            "remaining_ms": millis(list.remaining),
        })
    };
    let lists: Vec<_> = found.lists.iter().map(list).collect();
    json!({ "lists": lists, "has_conflict": found.has_conflict, "faults": faults(&found.faults), "unlisted": faults(&found.unlisted) })
}

fn faults(faults: &[(Arc<str>, Fault)]) -> Vec<Value> {
    let faults = faults.iter();
    faults
        .map(|(node, fault)| json!({ "node": &**node, "reason": fault.kind(), "trouble": fault.to_string() }))
        .collect()
}

fn words(list: &[Arc<str>]) -> Vec<&str> {
    list.iter().map(|word| &**word).collect()
}

fn text(found: &Registrations, asked: usize) -> String {
    let mut text = String::new();
    for list in &found.lists {
        let _ = writeln!(
            text,
            "{}: {}",
            counted(list.nodes.len(), "node"),
            list.nodes.join(", ")
        );
        let _ = writeln!(
            text,
            "  registered on {} of {asked}, expires in {} unless renewed",
            list.registered_on.len(),
            short(list.remaining)
        );
        for client in &list.clients {
            let _ = writeln!(text, "  {client}");
        }
    }
    for (node, fault) in &found.faults {
        let _ = writeln!(text, "{node}: {fault}");
    }
    for (node, fault) in &found.unlisted {
        let _ = writeln!(
            text,
            "{node}: clients are not listed: {}",
            nodes::not_listed(fault)
        );
    }
    let verdict = match found.lists.len() {
        _ if found.faults.len() == asked => "no node could be asked",
        0 => "no list of nodes is in use: no client takes locks on these nodes",
        1 => "one list of nodes is in use",
        _ if found.has_conflict => {
            "MORE THAN ONE LIST OF NODES IS IN USE: two lists could give one lock to two clients, so clients of the later list \
             get no locks. Let all clients use the same list"
        }
        _ => "one set of nodes is in use, by different names: use the same names in all clients",
    };
    let _ = writeln!(text, "{verdict}");
    text
}
