//! Resource names and key prefixes: any text is used literally, or refused with the right error.

use std::sync::Arc;

use quorlock::simulation::Node;
use quorlock::{AcquireError, ConfigError, ConnectError, MAX_PREFIX_BYTES, MAX_RESOURCE_BYTES, Redlock};

use super::bytes::Bytes;
use super::recorder::{Recorder, on_paused_clock};

pub(crate) fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (prefix, mut resource) = (bytes.text(), bytes.text());
    resource.push_str(&String::from_utf8_lossy(bytes.0));
    on_paused_clock(check(&prefix, &resource));
}

async fn check(prefix: &str, resource: &str) {
    let node = Recorder::new(false);
    let builder = Redlock::builder().key_prefix(prefix);
    let redlock = match builder.custom_nodes(vec![node.clone() as Arc<dyn Node>]) {
        Ok(redlock) => redlock,
        Err(ConnectError::Config(ConfigError::LongPrefix { bytes })) => {
            assert!(bytes == prefix.len() && bytes > MAX_PREFIX_BYTES);
            return;
        }
        Err(other) => panic!("{other:?} for the prefix {prefix:?}"),
    };
    assert!(prefix.len() <= MAX_PREFIX_BYTES);
    let key = format!("{prefix}{resource}");
    let reserved = ["#fence", "#node", "#views", "#client", "#probe", "#memory"];
    let reserved = reserved.iter().any(|suffix| key.ends_with(suffix));
    match redlock.lock(resource).try_acquire().await {
        Ok(lease) => {
            assert!(!resource.is_empty() && resource.len() <= MAX_RESOURCE_BYTES && !reserved);
            assert_eq!(lease.resource(), resource);
            let _ = lease.release().await;
            redlock.shutdown().await;
            assert!(node.asked().iter().all(|request| *request.key == key));
            return;
        }
        Err(AcquireError::Config(error)) => match error {
            ConfigError::EmptyResource => assert!(resource.is_empty()),
            ConfigError::LongResource { bytes } => {
                assert!(bytes == resource.len() && bytes > MAX_RESOURCE_BYTES);
            }
            ConfigError::ReservedName { key: named, suffix } => {
                assert!(reserved && *named == *key && key.ends_with(suffix));
            }
            other => panic!("{other:?} for {prefix:?} and {resource:?}"),
        },
        Err(other) => panic!("{other:?} for {prefix:?} and {resource:?}"),
    }
    assert!(node.asked().is_empty(), "refused, but a request was sent");
}
