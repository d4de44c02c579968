//! The decisions, as pure functions of what was observed.
//!
//! Entry points: `quorum` (votes), `fencing` (tokens), `election` (split votes), `memory` and `view` (which nodes count).
//! Nothing here knows a runtime, a client library, a clock or a random source; `tests/purity.rs` checks this.
//! Rules: A4, A5, A9, E1, F2, F3, F5, M1, M2, M4, W3, W4.

pub(crate) mod backoff;
pub(crate) mod election;
pub(crate) mod expiry;
pub(crate) mod fencing;
pub(crate) mod memory;
pub(crate) mod node_clock;
pub(crate) mod quorum;
pub(crate) mod token;
pub(crate) mod validity;
pub(crate) mod view;
