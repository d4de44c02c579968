//! Why a node does not vote, as a finding.

use super::finding::Finding;
use crate::node::{Fault, Unfit};

pub(super) const GIVE_MEMORY: &str = "give it memory, and look for keys without an expiry";
pub(super) const REPAIR_DISK: &str = "repair the server's disk, or free space on it; its log has the reason";

/// Returns the finding about a node that does not vote for this reason.
pub(super) fn of(fault: &Fault) -> Finding {
    let seen = fault.to_string();
    match fault {
        Fault::Restarted { .. } | Fault::Replaced { .. } | Fault::Unsettled { .. } | Fault::Loading => {
            Finding::warning(
                fault.kind(),
                seen,
                "wait; look for the reason if you did not restart it",
            )
        }
        _ => Finding::error(code(fault), seen, advice(fault)),
    }
}

fn code(fault: &Fault) -> &'static str {
    let Fault::Unfit(unfit) = fault else {
        return fault.kind();
    };
    match unfit {
        Unfit::Replica => "replica",
        Unfit::ClusterMember => "cluster_member",
        Unfit::Sentinel => "sentinel",
        Unfit::Duplicate { .. } => "same_server_twice",
        Unfit::TooOld { .. } => "too_old",
        Unfit::OtherRecord { .. } => "other_record",
        Unfit::NoScripts { .. } => "no_scripts",
        Unfit::Unreadable { .. } => "unreadable",
    }
}

fn advice(fault: &Fault) -> &'static str {
    match fault {
        Fault::Unfit(unfit) => match unfit {
            Unfit::Replica => "name a master of its own, or make it one with REPLICAOF NO ONE",
            Unfit::ClusterMember | Unfit::Sentinel => "name a master of its own",
            Unfit::Duplicate { .. } => "name each server once, and run each node on a machine of its own",
            Unfit::TooOld { .. } => "upgrade it",
            Unfit::OtherRecord { .. } => "use another key prefix, or delete the key",
            Unfit::NoScripts { .. } => "remove rename-command from the server's configuration",
            Unfit::Unreadable { .. } => "name a Redis or Valkey master",
        },
        Fault::OutOfMemory => GIVE_MEMORY,
        Fault::ReadOnly | Fault::MasterDown => {
            "make it a master again with REPLICAOF NO ONE, or name another node"
        }
        Fault::NoReplicas => "CONFIG SET min-replicas-to-write 0, and correct the server's configuration",
        Fault::CannotPersist => REPAIR_DISK,
        Fault::Busy => "use the node for locks only: another program's script runs for too long",
        Fault::Auth { .. } => "correct the password or the user in the URL",
        Fault::NoPermission { .. } => "give the user these rights",
        Fault::ClusterDown => "name a master in no cluster",
        Fault::Disconnected { .. } | Fault::ConnectionLost { .. } | Fault::Timeout { .. } => {
            "start the server, or correct its address; look for firewalls, and for slow commands (SLOWLOG)"
        }
        _ => "look at the server's log",
    }
}
