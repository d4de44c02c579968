//! Runs the tool.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::program::program;

fn command(urls: &[String], arguments: &[&str]) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_quorlock"), urls);
    command.args(arguments);
    command
}

/// Runs a command to its end. Returns the document that it prints.
pub(crate) async fn quorlock(urls: &[String], arguments: &[&str]) -> serde_json::Value {
    let output = command(urls, arguments).output().await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) struct Exporter {
    pub(crate) address: SocketAddr,
    _process: Child,
}

impl Exporter {
    /// Returns once it listens.
    pub(crate) async fn start(urls: &[String]) -> Exporter {
        let mut command = command(urls, &["exporter", "--listen", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines.next_line().await.unwrap().expect("the exporter has ended");
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        Exporter {
            address: address.parse().unwrap(),
            _process: process,
        }
    }
}
