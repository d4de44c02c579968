//! etcd's lock: clients wait in the server, in the order in which they came.
//!
//! To build etcd's crate takes `protoc`, so the few messages are copied from `rpc.proto` and `v3lock.proto`.

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::contender::{Contender, ContenderKind, Failure};
use crate::servers::Addresses;

/// Longer than the benchmark: unlike usual clients, this one does not keep its lease alive.
const LEASE_SECONDS: i64 = 3_600;

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// The granted lock. Unlocking needs its key.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {}

pub(crate) struct Etcd {
    channel: Channel,
    lease: i64,
}

impl Contender for Etcd {
    type Held = LockResponse;

    /// Each waiter has a lease. The waiters of a process share connections.
    async fn connect(_: ContenderKind, addresses: &Addresses, waiters: usize) -> Result<Vec<Self>, Failure> {
        let channel = channel(&addresses.etcd)?;
        let mut all = Vec::new();
        for _ in 0..waiters {
            let lease = lease(&channel).await.map_err(words)?;
            let channel = channel.clone();
            all.push(Etcd { channel, lease });
        }
        Ok(all)
    }

    async fn acquire(&self, key: &str) -> Result<LockResponse, Failure> {
        let request = LockRequest {
            name: key.into(),
            lease: self.lease,
        };
        call(&self.channel, "/v3lockpb.Lock/Lock", request)
            .await
            .map_err(words)
    }

    async fn release(&self, held: LockResponse) -> Result<(), Failure> {
        let request = UnlockRequest { key: held.key };
        let done: Result<UnlockResponse, _> = call(&self.channel, "/v3lockpb.Lock/Unlock", request).await;
        done.map(drop).map_err(words)
    }
}

/// Returns a channel to all members by turns.
fn channel(members: &[String]) -> Result<Channel, Failure> {
    let endpoints = members.iter().map(|member| Endpoint::from_shared(member.clone()));
    let endpoints: Vec<Endpoint> = endpoints
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    Ok(Channel::balance_list(endpoints.into_iter()))
}

/// Returns whether each member answers requests that need a majority.
pub(crate) async fn works(members: &[String]) -> bool {
    for member in members {
        let Ok(channel) = channel(std::slice::from_ref(member)) else {
            return false;
        };
        if lease(&channel).await.is_err() {
            return false;
        }
    }
    true
}

async fn lease(channel: &Channel) -> Result<i64, Status> {
    let request = LeaseGrantRequest { ttl: LEASE_SECONDS };
    let granted: LeaseGrantResponse = call(channel, "/etcdserverpb.Lease/LeaseGrant", request).await?;
    Ok(granted.id)
}

async fn call<A, B>(channel: &Channel, method: &'static str, request: A) -> Result<B, Status>
where
    A: Message + Send + Sync + 'static,
    B: Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<A, B>::default();
    let answer = grpc
        .unary(Request::new(request), PathAndQuery::from_static(method), codec)
        .await?;
    Ok(answer.into_inner())
}

fn words(status: Status) -> Failure {
    status.to_string()
}
