//! What the nodes of a set have in common.

use std::sync::Arc;
use std::time::Duration;

use super::membership::Participation;
use crate::node::LocalClient;

const LONGEST_LOOK: Duration = Duration::from_secs(5);
const SHORTEST_LOOK: Duration = Duration::from_millis(500);

/// What the nodes of a set have in common.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: Arc<str>,
    /// How long connecting and probing may take.
    pub(crate) timeout: Duration,
    /// The guard window as it was set: it determines how often the client looks at its nodes.
    pub(crate) window: Duration,
    /// How long nodes that may have forgotten locks are left out (W).
    pub(crate) longest_ttl: Duration,
    /// The same, for this client's own locks. `None`: the restart guard is off.
    pub(crate) guard: Option<Duration>,
    pub(crate) participation: Participation,
    pub(crate) client: LocalClient,
}

impl Settings {
    /// Returns the longest time between two looks of a client at its nodes. It is well within the guard window.
    pub(super) fn look_period(&self) -> Duration {
        (self.window / 6).clamp(SHORTEST_LOOK, LONGEST_LOOK)
    }
}
