//! Finds out whether a node accepts writes now, by a write that disturbs nothing.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::bytes::BytesMut;
use uuid::Uuid;

use super::pipeline::Pipeline;
use super::resp;
use crate::node::Fault;
use crate::options::PROBE_SUFFIX;

/// The life of a key whose deletion is lost, in milliseconds.
const LIFE: &str = "10000";

/// A key that nobody else uses. Lists of locks leave it out.
pub(super) struct ProbeKey(String);

impl ProbeKey {
    pub(super) fn new(prefix: &str) -> ProbeKey {
        ProbeKey(format!("{prefix}{}{PROBE_SUFFIX}", Uuid::new_v4().simple()))
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// Encodes the write. A server that refuses locks refuses it for the same reason: no memory, no replicas, a full disk.
    pub(super) fn write(&self) -> BytesMut {
        resp::command(&["SET", &self.0, "x", "PX", LIFE])
    }

    pub(super) fn delete(&self) -> BytesMut {
        resp::command(&["DEL", &self.0])
    }
}

/// Writes a key that expires, then deletes it. Returns how long the write took.
pub(super) async fn check(pipeline: &Pipeline, prefix: &str) -> Result<Duration, Fault> {
    let key = ProbeKey::new(prefix);
    let begin = Instant::now();
    pipeline.ask_one(key.write()).await?;
    let took = begin.elapsed();
    // If the deletion fails, the key expires.
    let _ = pipeline.ask_one(key.delete()).await;
    Ok(took)
}
