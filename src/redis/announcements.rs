//! Subscriptions to announcements (W2), on a connection of their own (T5): it opens for the first listener and closes some time
//! after the last has left. On the lock connection, any publisher could delay replies.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::{Config, PerformanceConfig};
use fred::types::{Message, RespVersion, Value};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::address::{Addresses, pinned};
use super::credentials::renewed_after;
use super::endpoint::Endpoint;
use super::fault;
use super::fred_client::{self, Task, command};
use super::script;
use crate::node::{Announcement, Fault, Listener, Listening};
use crate::protocol::backoff::Backoff;

/// How long the connection stays open without listeners.
const KEPT: Duration = Duration::from_secs(10);
/// Shortest pause between attempts to connect.
const FASTEST: Duration = Duration::from_millis(50);
const SLOWEST: Duration = Duration::from_secs(10);
/// Interval of pings while there are listeners, and how long an answer may take. The connection may have died silently.
const PING: Duration = Duration::from_secs(1);
/// Most announcements that may wait to be read: as many as one script call makes. If more come, all listeners are told that some
/// are missing. The client library reserves memory for as many in each of its nine channels.
const MOST_WAITING: usize = 128;

/// A handle that adds listeners to one node's announcements.
#[derive(Clone, Debug)]
pub(super) struct Announcements {
    orders: mpsc::UnboundedSender<Order>,
    database: u8,
    next: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Order {
    Listen {
        channel: Arc<str>,
        id: u64,
        listener: Listener,
    },
    Leave {
        channel: Arc<str>,
        id: u64,
    },
}

impl Announcements {
    /// Returns the handle, and the task that receives announcements. The task must run for as long as the node exists.
    pub(super) fn new(endpoint: Arc<Endpoint>) -> (Announcements, impl Future<Output = ()>) {
        let (orders, inbox) = mpsc::unbounded_channel();
        let announcements = Announcements {
            orders,
            database: endpoint.database(),
            next: Arc::default(),
        };
        (announcements, run_subscriptions(endpoint, inbox))
    }

    pub(super) fn listen(&self, key: &str, listener: Listener) -> Listening {
        let channel: Arc<str> = script::channel(key, self.database).into();
        let id = self.next.fetch_add(1, Relaxed);
        // Fails only if the node has ended, which announces nothing more.
        let _ = self.orders.send(Order::Listen {
            channel: channel.clone(),
            id,
            listener,
        });
        Box::new(Leave {
            orders: self.orders.clone(),
            channel,
            id,
        })
    }
}

struct Leave {
    orders: mpsc::UnboundedSender<Order>,
    channel: Arc<str>,
    id: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Leave {
            channel: self.channel.clone(),
            id: self.id,
        });
    }
}

/// Keeps a connection open while there are listeners. Ends once all handles are dropped.
async fn run_subscriptions(endpoint: Arc<Endpoint>, mut inbox: mpsc::UnboundedReceiver<Order>) {
    let backoff = Backoff::new(FASTEST, SLOWEST);
    let mut listeners = Listeners::default();
    let mut failures = 0;
    loop {
        while listeners.channels.is_empty() {
            match inbox.recv().await {
                Some(order) => drop(listeners.take(order)),
                None => return,
            }
        }
        let since = Instant::now();
        let fault = match Connection::open(&endpoint).await {
            Ok(connection) => {
                connection
                    .serve(&endpoint.addresses, &mut listeners, &mut inbox)
                    .await
            }
            Err(fault) => Some(fault),
        };
        let was_subscribed = listeners.channels.values().any(|channel| channel.subscribed);
        listeners.mark_all_unsubscribed(Listener::unsubscribed);
        let Some(fault) = fault else {
            // Closed for lack of listeners.
            failures = 0;
            continue;
        };
        if was_subscribed || since.elapsed() > SLOWEST {
            failures = 0;
        }
        failures += 1;
        match fault {
            // Logged once: a missing right does not come back by itself.
            Fault::NoPermission { .. } if failures == 1 => tracing::warn!(
                node = &*endpoint.name,
                "cannot subscribe to releases, so waiters poll, and a broken lock is noticed with the next renewal: \
                 give the user +subscribe and the channels &<prefix>*"
            ),
            fault if failures == 1 => {
                tracing::debug!(node = &*endpoint.name, %fault, "no announcements: waiters poll");
            }
            _ => {}
        }
        sleep(backoff.delay(failures, fastrand::u32(..))).await;
        // Listeners that left during the pause are dropped before connecting.
        while let Ok(order) = inbox.try_recv() {
            listeners.take(order);
        }
    }
}

#[derive(Default)]
struct Listeners {
    channels: HashMap<Arc<str>, Channel>,
    generations: u64,
}

struct Channel {
    /// Distinguishes it from earlier channels of the same name.
    generation: u64,
    /// Whether the server has confirmed the subscription.
    subscribed: bool,
    listeners: Vec<(u64, Listener)>,
}

enum Change {
    Subscribe(Name),
    Unsubscribe(Arc<str>),
}

/// A channel's name and generation.
type Name = (Arc<str>, u64);

impl Listeners {
    fn take(&mut self, order: Order) -> Option<Change> {
        match order {
            Order::Listen {
                channel: name,
                id,
                listener,
            } => {
                let generation = &mut self.generations;
                let channel = self.channels.entry(name.clone()).or_insert_with(|| {
                    *generation += 1;
                    Channel {
                        generation: *generation,
                        subscribed: false,
                        listeners: Vec::new(),
                    }
                });
                if channel.subscribed {
                    listener.subscribed();
                }
                channel.listeners.push((id, listener));
                let is_new = channel.listeners.len() == 1;
                is_new.then_some(Change::Subscribe((name, channel.generation)))
            }
            Order::Leave { channel: name, id } => {
                let channel = self.channels.get_mut(&name)?;
                channel.listeners.retain(|(listener, _)| *listener != id);
                if !channel.listeners.is_empty() {
                    return None;
                }
                self.channels.remove(&name);
                Some(Change::Unsubscribe(name))
            }
        }
    }

    /// Marks the channel as subscribed, and tells its listeners.
    fn mark_subscribed(&mut self, (name, generation): &Name) {
        let channel = self.channels.get_mut(name);
        if let Some(channel) = channel.filter(|channel| channel.generation == *generation) {
            channel.subscribed = true;
            channel
                .listeners
                .iter()
                .for_each(|(_, listener)| listener.subscribed());
        }
    }

    fn names(&self) -> Vec<Name> {
        let name = |(name, channel): (&Arc<str>, &Channel)| (name.clone(), channel.generation);
        self.channels.iter().map(name).collect()
    }

    /// Calls `what` for each listener, and marks all channels as not subscribed.
    fn mark_all_unsubscribed(&mut self, what: impl Fn(&Listener)) {
        for channel in self.channels.values_mut() {
            channel.subscribed = false;
            channel.listeners.iter().for_each(|(_, listener)| what(listener));
        }
    }

    /// Tells the listeners of subscribed channels that announcements were missed.
    fn report_missed(&self) {
        for channel in self.channels.values().filter(|channel| channel.subscribed) {
            for (_, listener) in &channel.listeners {
                listener.unsubscribed();
                listener.subscribed();
            }
        }
    }

    fn deliver(&self, message: &Message) {
        let Some(channel) = self.channels.get(&*message.channel) else {
            return;
        };
        // Any client may publish there, so other texts are ignored.
        let announced = message.value.as_str();
        let Some(announced) = announced.and_then(|text| script::announced(&text)) else {
            return;
        };
        for (_, listener) in &channel.listeners {
            match announced {
                Announcement::Release(owner, notice) => listener.released(owner, notice),
                Announcement::Wait(notice) => listener.waits(notice),
            }
        }
    }
}

impl Drop for Listeners {
    /// Tells all listeners that nothing more is announced: the node or its runtime has ended.
    fn drop(&mut self) {
        self.mark_all_unsubscribed(Listener::unsubscribed);
    }
}

struct Connection {
    client: Client,
    /// The address that the node's name was resolved to. `None` if it has no name.
    peer: Option<SocketAddr>,
    task: Task,
    messages: Receiver<Message>,
    answer_timeout: Duration,
    /// When the connection is replaced because its credentials expire. `None` if they do not.
    expires: Option<Instant>,
}

/// The channels of one subscription, and whether the server has confirmed it.
type Confirmation = BoxFuture<'static, (Vec<Name>, Result<(), Fault>)>;

impl Connection {
    /// Connects to the address that locks are taken at. Chooses one if there is none.
    async fn open(endpoint: &Endpoint) -> Result<Connection, Fault> {
        timeout(endpoint.timeout, Connection::open_without_limit(endpoint))
            .await
            .unwrap_or_else(|_| Err(fault::disconnected("no answer".into())))
    }

    async fn open_without_limit(endpoint: &Endpoint) -> Result<Connection, Fault> {
        let addresses = &endpoint.addresses;
        let peer = match addresses.current() {
            None => addresses.choose(addresses.find().await?).await?,
            current => current,
        };
        let (config, valid_for) = endpoint.node.current().await?;
        let config = Config {
            fail_fast: true,
            // Lets announcements come between answers.
            version: RespVersion::RESP3,
            ..pinned(&config, peer)
        };
        let performance = PerformanceConfig {
            default_command_timeout: endpoint.timeout,
            broadcast_channel_capacity: MOST_WAITING,
            ..Default::default()
        };
        let connection = fred_client::settings(endpoint.timeout);
        let client = Client::new(config, Some(performance), Some(connection), None);
        let messages = client.message_rx();
        let started = async {
            let task = fred_client::start(&client).await?;
            // A user may lack the right to give the connection a name.
            let name = format!("{}/announcements", endpoint.client_name);
            let name = vec![Value::from_static_str("SETNAME"), Value::from(name)];
            let _ = client.custom::<Value, Value>(command("CLIENT"), name).await;
            Ok(task)
        };
        let task = endpoint.announcement_patience.wait_for(started).await?;
        Ok(Connection {
            client,
            peer,
            task,
            messages,
            answer_timeout: endpoint.timeout,
            expires: valid_for.and_then(|valid_for| Instant::now().checked_add(renewed_after(valid_for))),
        })
    }

    /// Receives announcements until the connection ends. Returns why; `None` if it was closed for lack of listeners.
    async fn serve(
        mut self,
        addresses: &Addresses,
        listeners: &mut Listeners,
        inbox: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Option<Fault> {
        let mut confirmations = FuturesUnordered::new();
        let confirmation = self.subscribe(listeners.names()).await;
        confirmations.push(confirmation);
        let mut idle_since = Instant::now();
        let mut elsewhere = pin!(addresses.wait_until_elsewhere(self.peer));
        let expires = self.expires.unwrap_or(idle_since);
        let mut next_ping = Instant::now() + PING;
        loop {
            let is_idle = listeners.channels.is_empty();
            tokio::select! {
                biased;
                message = self.messages.recv() => match message {
                    Ok(message) => listeners.deliver(&message),
                    Err(RecvError::Lagged(_)) => {
                        listeners.report_missed();
                    }
                    Err(RecvError::Closed) => return Some(fault::disconnected("connection closed".into())),
                },
                Some((channels, outcome)) = confirmations.next() => match outcome {
                    Ok(()) => channels.iter().for_each(|name| listeners.mark_subscribed(name)),
                    Err(fault) => return Some(fault),
                },
                order = inbox.recv() => {
                    let mut to_subscribe = Vec::new();
                    let mut order = Some(order?);
                    // Orders that wait together go out as one subscription.
                    while let Some(next) = order {
                        match listeners.take(next) {
                            Some(Change::Subscribe(name)) => to_subscribe.push(name),
                            Some(Change::Unsubscribe(name)) => {
                                to_subscribe.retain(|(new, _): &Name| *new != name);
                                let _ = self.client.unsubscribe(&*name).await;
                            }
                            None => {}
                        }
                        order = inbox.try_recv().ok();
                    }
                    if !to_subscribe.is_empty() {
                        let confirmation = self.subscribe(to_subscribe).await;
                        confirmations.push(confirmation);
                    }
                    idle_since = Instant::now();
                }
                () = sleep_until(next_ping), if !is_idle => {
                    next_ping = Instant::now() + PING;
                    let alive = confirm(self.client.clone(), PING);
                    confirmations.push(alive.map(|outcome| (Vec::new(), outcome)).boxed());
                }
                fault = self.task.ended() => return Some(fault),
                () = sleep_until(expires), if self.expires.is_some() => {
                    return Some(fault::disconnected("its credentials expire".into()));
                }
                () = &mut elsewhere => return Some(fault::disconnected("the node has moved".into())),
                () = sleep_until(idle_since + KEPT), if is_idle => return None,
            }
        }
    }

    /// Subscribes, and pings behind that: the answer confirms the subscription. The client library takes an error reply to the
    /// subscription for the answer to the ping. From then on answers cannot be matched, so the connection is given up.
    async fn subscribe(&self, channels: Vec<Name>) -> Confirmation {
        let names: Vec<String> = channels.iter().map(|(name, _)| (**name).to_owned()).collect();
        let subscribed = self.client.subscribe(names).await;
        let (client, answer_timeout) = (self.client.clone(), self.answer_timeout);
        Box::pin(async move {
            let outcome = match subscribed {
                Ok(()) => confirm(client, answer_timeout).await,
                Err(error) => Err(fred_client::refusal(&error)),
            };
            (channels, outcome)
        })
    }
}

/// Pings the server. The answer shows that all earlier commands were executed.
async fn confirm(client: Client, answer_timeout: Duration) -> Result<(), Fault> {
    let question = vec![Value::from_static_str("subscribed")];
    let asked = client.custom::<Value, Value>(fred_client::command("PING"), question);
    match timeout(answer_timeout, asked).await {
        Ok(Ok(answer)) if answer.as_str().as_deref() == Some("subscribed") => Ok(()),
        Ok(Ok(_)) => Err(fault::disconnected("an answer to another command".into())),
        Ok(Err(error)) => Err(fred_client::refusal(&error)),
        Err(_) => Err(fault::disconnected("no answer".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::node::OwnerToken;
    use crate::node::{ReleaseNotice, ReleaseSink, WaitNotice};

    #[derive(Default)]
    struct Notes(Mutex<Vec<bool>>);

    impl ReleaseSink for Notes {
        fn set_subscribed(&self, _: usize, subscribed: bool) {
            self.0.lock().unwrap().push(subscribed);
        }

        fn released(&self, _: usize, _: OwnerToken, _: ReleaseNotice) {}

        fn waits(&self, _: WaitNotice) {}
    }

    impl Notes {
        fn taken(&self) -> Vec<bool> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    fn listens(listeners: &mut Listeners, channel: &str, id: u64) -> (Option<Change>, Arc<Notes>) {
        let notes = Arc::new(Notes::default());
        let order = Order::Listen {
            channel: channel.into(),
            id,
            listener: Listener::new(0, notes.clone()),
        };
        (listeners.take(order), notes)
    }

    #[test]
    fn missed_announcements_are_reported_to_subscribed_listeners_only() {
        let mut listeners = Listeners::default();
        let (change, one) = listens(&mut listeners, "one", 1);
        let Some(Change::Subscribe(name)) = change else {
            panic!("not subscribed")
        };
        listeners.mark_subscribed(&name);
        let (_, other) = listens(&mut listeners, "other", 2);
        assert_eq!((one.taken(), other.taken()), (vec![true], vec![]));
        listeners.report_missed();
        assert_eq!((one.taken(), other.taken()), (vec![false, true], vec![]));
    }

    #[test]
    fn listeners_are_notified_when_the_node_ends() {
        let mut listeners = Listeners::default();
        let (_, notes) = listens(&mut listeners, "one", 1);
        drop(listeners);
        assert_eq!(notes.taken(), [false]);
    }
}
