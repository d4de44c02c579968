//! `quorlock exporter`: serves metrics of nodes and locks, and a page.
//!
//! `prometheus.rs` and `page.rs` show a survey, `server.rs` answers requests.

mod page;
mod prometheus;
mod server;

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;

use crate::args::Exporter;
use crate::end::End;
use crate::exit::{self, Failure};
use crate::report::Report;
use crate::signals::{self, Signals};
use crate::survey::Surveyor;
use crate::{locking, out};

/// For how long a survey is shown.
const FRESH: Duration = Duration::from_secs(5);

pub(crate) async fn exporter(arguments: Exporter, report: &Report) -> Result<End, Failure> {
    let mut heard = Signals::listen(&signals::END)?;
    locking::check_window(&arguments.times, true, report);
    let listen = async {
        let listener = TcpListener::bind(arguments.listen).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let (listener, address) = listen.await.map_err(|error: std::io::Error| {
        Failure::system(&format!("listen on {}", arguments.listen), &error)
    })?;
    let surveyor = match heard
        .or(Surveyor::start(&arguments.existing, &arguments.times, FRESH))
        .await
    {
        Ok(surveyor) => surveyor?,
        Err(_) => return Ok(End::Code(exit::OK)),
    };
    let url = format!("http://{address}/");
    out::print(report, || json!({ "url": url }), || format!("{url}\n"))?;
    tokio::select! {
        () = server::serve(listener, address.ip().to_canonical().is_loopback(), surveyor.clone()) => {}
        () = surveyor.check_again_and_again() => {}
        _ = heard.next() => {}
    }
    Ok(End::Code(exit::OK))
}
