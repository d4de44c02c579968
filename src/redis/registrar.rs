//! Registers this client's list of nodes on one node, and reads the other lists there (M4).

use std::sync::Arc;
use std::time::Duration;

use super::client_info;
use super::link::Link;
use super::pipeline::Pipeline;
use super::resp::{self, Value};
use crate::node::{ClientId, ClientInfo, Fault, LocalClient};
use crate::options::{CLIENT_SUFFIX, VIEWS_SUFFIX};
use crate::protocol::memory::Record;
use crate::protocol::view::View;

const VIEWS: &str = include_str!("views.lua");
const OTHER_MEMORY: i64 = -4;

/// A request to register a list, or to read the other lists only.
#[derive(Clone)]
pub(super) struct Registration {
    pub(super) act: Act,
    /// How long the list counts as in use.
    pub(super) lease: Duration,
    /// How long this client may take locks without another look.
    pub(super) fresh: Duration,
    /// This client's list, in its written form.
    pub(super) view: String,
    /// Other lists that are no conflict with this one.
    pub(super) compatible: Vec<String>,
    /// How many locks this client holds.
    pub(super) locks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Look,
    /// Adds the list, unless an unknown list is there.
    Add,
    /// Adds the list whatever is there: leases are held.
    Keep,
}

pub(super) struct Registered {
    pub(super) added: bool,
    /// The list could not be added, because the node is at its memory limit.
    pub(super) is_full: bool,
    /// How long a list has been there that is this client's, or no conflict with it.
    pub(super) standing: Duration,
    /// When this client registered there before, in milliseconds of the node's clock. Zero if the node does not know.
    pub(super) registered_at_millis: i64,
    pub(super) now_millis: i64,
    pub(super) others: Vec<Other>,
}

/// Another list in use.
pub(super) struct Other {
    /// The list in its written form.
    pub(super) text: String,
    /// `None` if it is damaged.
    pub(super) view: Option<View>,
    pub(super) remaining: Duration,
    /// How long clients may take locks under the list without another look.
    pub(super) fresh: Duration,
    pub(super) user: String,
}

pub(super) struct Registrar {
    views_key: String,
    /// The key of this client's description, and the description. `None` if it does not tell who it is.
    client_key: String,
    client: Option<ClientInfo>,
}

impl Registrar {
    pub(super) fn new(prefix: &str, client: LocalClient) -> Registrar {
        Registrar {
            views_key: format!("{prefix}{VIEWS_SUFFIX}"),
            client_key: client_key(prefix, client.id),
            client: client.info,
        }
    }

    /// Sends the request to the link's node. Fails if the node has another memory than the link.
    pub(super) async fn register(
        &self,
        pipeline: &Pipeline,
        link: &Arc<Link>,
        registration: &Registration,
    ) -> Result<Registered, Fault> {
        let keys = [
            self.views_key.clone(),
            link.target().record_key.to_string(),
            self.client_key.clone(),
        ];
        let act = match registration.act {
            Act::Look => "look",
            Act::Add => "add",
            Act::Keep => "keep",
        };
        let mut args = vec![
            Record::stamp(link.memory().id),
            act.to_owned(),
            registration.lease.as_millis().to_string(),
            registration.view.clone(),
            client_info::encode(self.client.as_ref(), registration.locks),
            registration.fresh.as_millis().to_string(),
        ];
        args.extend(registration.compatible.iter().cloned());
        let commands = [
            resp::command(&["INFO", "replication"]),
            resp::eval(VIEWS, &keys, &args),
        ];
        let mut replies = pipeline.ask(link, &commands).await?.into_iter();
        if let Some(info) = replies.next() {
            link.check_role(info.as_str().unwrap_or_default());
        }
        let answer = replies.next().unwrap_or(Value::Nil);
        if answer == Value::Integer(OTHER_MEMORY) {
            return Err(Fault::OtherMemory);
        }
        read(answer).ok_or_else(|| Fault::Protocol {
            detail: "an answer to the registration without lists of nodes".into(),
        })
    }
}

/// Reads a client's description. `None` if there is none.
pub(super) async fn client_info(pipeline: &Pipeline, key: &str) -> Result<Option<ClientInfo>, Fault> {
    // When it was registered, the description, its list of nodes.
    let registered = pipeline.ask_one(resp::command(&["GET", key])).await?;
    let word = registered.as_str().and_then(|text| text.split(' ').nth(1));
    Ok(word.and_then(client_info::decode))
}

/// Returns the key of a client's description.
pub(super) fn client_key(prefix: &str, client: ClientId) -> String {
    format!("{prefix}{client}{CLIENT_SUFFIX}")
}

fn read(answer: Value) -> Option<Registered> {
    let Value::List(parts) = answer else { return None };
    let [added, standing, registered_at, now, Value::List(others)] = &parts[..] else {
        return None;
    };
    let millis = |value: &Value| Some(Duration::from_millis(u64::try_from(value.as_i64()?).ok()?));
    let other = |parts: &[Value]| {
        let text = parts[0].as_str()?.to_owned();
        Some(Other {
            view: text.parse().ok(),
            text,
            remaining: millis(&parts[1])?,
            fresh: millis(&parts[2])?,
            user: parts[3].as_str()?.to_owned(),
        })
    };
    Some(Registered {
        added: added.as_i64()? == 1,
        is_full: false,
        standing: millis(standing)?,
        registered_at_millis: registered_at.as_i64()?,
        now_millis: now.as_i64()?,
        others: others.chunks_exact(4).map(other).collect::<Option<Vec<_>>>()?,
    })
}
