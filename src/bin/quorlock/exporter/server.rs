//! Answers HTTP requests.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::{page, prometheus};
use crate::status::Verdict;
use crate::survey::Surveyor;

/// Most connections at a time. Further ones wait.
const MOST_CONNECTIONS: usize = 64;
/// How long a client may take to send a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may last, a survey and the client's reading included.
const LONGEST: Duration = Duration::from_secs(30);

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PAGE: &str = "text/html; charset=utf-8";

/// Runs until dropped. `is_local`: it listens on this host only.
pub(super) async fn serve(listener: TcpListener, is_local: bool, surveyor: Arc<Surveyor>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut fails = false;
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, for example: others may be closed soon.
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!(%error, "connections are not accepted");
                }
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if std::mem::take(&mut fails) {
            tracing::warn!("connections are accepted again");
        }
        let surveyor = surveyor.clone();
        tokio::spawn(async move {
            let answering = service_fn(move |request| answer(request, is_local, surveyor.clone()));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                // Idle connections would keep others out.
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answering);
            // Errors are those of the client.
            let _ = timeout(LONGEST, connection).await;
            drop(permit);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    is_local: bool,
    surveyor: Arc<Surveyor>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = response(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET and HEAD\n".to_owned(),
        );
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return Ok(response);
    }
    if is_local && !is_asked_by_address(&request) {
        return Ok(response(
            StatusCode::MISDIRECTED_REQUEST,
            TEXT,
            "this exporter listens on its host only: ask for localhost or an IP address (a proxy sends Host: localhost)\n".to_owned(),
        ));
    }
    Ok(match request.uri().path() {
        "/" => response(StatusCode::OK, PAGE, page::html(&surveyor.survey().await)),
        "/metrics" => response(
            StatusCode::OK,
            METRICS,
            prometheus::text(&surveyor.survey().await),
        ),
        "/healthz" => {
            let verdict = Verdict::of(&surveyor.nodes().await);
            let status = match verdict.is_quorum() {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            response(status, TEXT, verdict.words() + "\n")
        }
        _ => response(
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /, /metrics and /healthz\n".to_owned(),
        ),
    })
}

/// Returns whether the client asked for `localhost` or an IP address. A page of another site, whose name was made to point to this
/// host, asks for that name: browsers would let it read the answer.
fn is_asked_by_address(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(HOST) else {
        return true; // no browser
    };
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let host = authority.host().to_ascii_lowercase();
        let name = host.trim_end_matches('.');
        // Browsers take these names for this machine, whatever a name server says (RFC 6761).
        let is_localhost = name == "localhost" || name.ends_with(".localhost");
        let address = host.trim_start_matches('[').trim_end_matches(']');
        is_localhost || address.parse::<IpAddr>().is_ok()
    })
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The page loads nothing, and runs nothing.
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    response
}
