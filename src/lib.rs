// The first definition of a link counts. The README's own definitions lead to files instead of pages.
#![doc = "[guarantees]: docs/guarantees/index.html\n[design]: docs/design/index.html\n[stores]: docs/stores/index.html\n[recipes]: docs/recipes/index.html\n[operating]: docs/operating/index.html\n[tool]: docs/tool/index.html\n[benchmarks]: docs/benchmarks/index.html\n[testing]: docs/testing/index.html\n"]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod builder;
mod clients;
mod context;
#[cfg(doc)]
pub mod docs;
mod doctor;
mod error;
mod fence_gate;
mod inspect;
mod keys;
mod lease;
pub mod node;
mod options;
mod period;
mod protocol;
mod redis;
mod redlock;
mod round;
#[cfg(feature = "simulation")]
pub mod simulation;
mod sys;
#[cfg(feature = "testbed")]
pub mod testbed;
mod votes;
mod waiting;

pub use builder::RedlockBuilder;
/// For the tool.
#[doc(hidden)]
pub use builder::check_up::{CheckUp, CheckedNode};
/// For the tool.
#[doc(hidden)]
pub use doctor::{Finding, Severity};
pub use error::{
    AcquireError, AttachError, ConnectError, ExtendError, LossReason, Lost, PeriodError, ReleaseOutcome,
    RunError,
};
pub use fence_gate::{FenceGate, StaleToken};
/// The client library, for [`NodeConfig::from_fred`].
pub use fred;
pub use inspect::{Inspection, Leak, LockStatus, Locks, NodeInspection};
pub use lease::{DetachedLease, Lease, LeaseHandle, NotAHandle};
pub use node::{ClientId, ClientInfo, Counter, Holder, KeyState, KeyValue};
pub use options::{
    Backoff, ConfigError, Drift, MAX_CONNECT_TIMEOUT, MAX_NAME_BYTES, MAX_NODES, MAX_PREFIX_BYTES,
    MAX_RESOURCE_BYTES, MAX_RETENTION, MAX_TTL, MIN_TTL,
};
pub use period::{DoneMark, Period};
pub use protocol::token::{FencingToken, NotAToken};
pub use redis::{Credentials, CredentialsProvider, NodeConfig, NodeList, Registrations};
#[cfg(feature = "tls")]
pub use redis::{TlsError, TlsOptions};
pub use redlock::{LockRequest, NodeStatus, Redlock};
pub use sys::metrics::count_stale_write;
pub use votes::{NodeVote, Votes};
