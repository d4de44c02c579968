//! Names of node faults, for programs.

use quorlock::node::Fault;

pub(crate) fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::Disconnected { .. } => "not_connected",
        Fault::Unfit(_) => "may_not_vote",
        Fault::Timeout { .. } => "timeout",
        Fault::ConnectionLost { .. } => "connection_lost",
        Fault::Restarted { .. } => "restart_guard",
        Fault::OtherMemory => "other_memory",
        Fault::Replaced { .. } => "replaced",
        Fault::Unsettled { .. } => "unsettled",
        Fault::Unregistered => "unregistered",
        Fault::OtherNodes(_) => "other_list_of_nodes",
        Fault::TooLate => "too_late",
        Fault::WrongType => "wrong_type",
        Fault::OutOfMemory => "out_of_memory",
        Fault::ReadOnly => "read_only",
        Fault::MasterDown => "master_down",
        Fault::NoReplicas => "no_replicas",
        Fault::Loading => "loading",
        Fault::CannotPersist => "cannot_persist",
        Fault::Busy => "busy",
        Fault::Auth { .. } => "auth",
        Fault::NoPermission { .. } => "no_permission",
        Fault::ClusterDown => "cluster_down",
        Fault::NoScript => "no_script",
        Fault::Server { .. } => "server_error",
        Fault::Protocol { .. } => "protocol",
        _ => "other",
    }
}
