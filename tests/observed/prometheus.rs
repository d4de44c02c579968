//! A Prometheus server, and what it knows.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::common::eventually;
use crate::{free_address, http};

const CONFIG: &str = include_str!("../../deploy/prometheus/prometheus.yml");
const RULES: &str = include_str!("../../deploy/prometheus/alerts.yml");

/// Ends when it is dropped.
pub(crate) struct Prometheus {
    address: String,
    _process: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server with the project's configuration, for these targets. It looks once a second, and its rules look back for ten
    /// seconds.
    pub(crate) async fn start(services: &[SocketAddr], exporter: SocketAddr) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let targets = services
            .iter()
            .map(|address| format!("\"{address}\""))
            .collect::<Vec<_>>();
        let config = replaced(CONFIG, "\"127.0.0.1:9000\"", &targets.join(", "));
        let config = replaced(&config, "127.0.0.1:9654", &exporter.to_string());
        let config = replaced(&config, "interval: 15s", "interval: 1s");
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let rules = replaced(RULES, "[10m:15s]", "[10s:1s]");
        let rules = replaced(&replaced(&rules, "[10m]", "[10s]"), "[5m]", "[10s]");
        let rules: String = rules.lines().fold(String::new(), |mut rules, line| {
            let line = match line.trim_start().starts_with("for: ") {
                true => "        for: 1s",
                false => line,
            };
            let _ = writeln!(rules, "{line}");
            rules
        });
        fs::write(folder.path().join("alerts.yml"), rules).unwrap();

        let address = free_address().to_string();
        let mut command = Command::new("prometheus");
        command.current_dir(folder.path());
        command.args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--log.level=warn",
        ]);
        command.arg(format!("--web.listen-address={address}"));
        let process = command.kill_on_drop(true).spawn();
        let process = process.expect("no `prometheus` on the PATH: `make setup-tests` installs it");
        eventually("Prometheus is ready", async || {
            let answer = http::ask(&address, "GET", "/-/ready").await;
            answer.is_ok_and(|(status, _)| status == 200)
        })
        .await;
        Prometheus {
            address,
            _process: process,
            _folder: folder,
        }
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let parameters: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect();
        let path = format!("/api/v1/{path}?{}", parameters.join("&"));
        let (status, body) = http::ask(&self.address, "GET", &path).await.unwrap();
        assert_eq!(status, 200, "{parameters:?}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"]["result"].clone()
    }

    /// Returns the first value that a query has now. `None` if it has none that is a number.
    pub(crate) async fn value(&self, query: &str) -> Option<f64> {
        let result = self.ask("query", &[("query", query)]).await;
        let values = result.as_array().unwrap().iter();
        values
            .filter_map(|series| series["value"][1].as_str()?.parse().ok())
            .find(|value: &f64| !value.is_nan())
    }

    /// Returns the series of a query since `seconds` ago: their labels, and their values by time.
    pub(crate) async fn series(&self, query: &str, seconds: u32) -> Vec<(String, Vec<(f64, f64)>)> {
        let now = self.value("vector(time())").await.unwrap();
        let (start, end) = ((now - f64::from(seconds)).to_string(), now.to_string());
        let parameters = [
            ("query", query),
            ("start", &*start),
            ("end", &*end),
            ("step", "1"),
        ];
        let result = self.ask("query_range", &parameters).await;
        let series = result.as_array().unwrap().iter().map(|series| {
            let labels: Vec<&str> = series["metric"]
                .as_object()
                .unwrap()
                .values()
                .filter_map(Value::as_str)
                .collect();
            let points = series["values"].as_array().unwrap().iter();
            let points = points.filter_map(|point| {
                let value: f64 = point[1].as_str()?.parse().ok()?;
                Some((point[0].as_f64()? - now, value)).filter(|_| value.is_finite())
            });
            (labels.join(" "), points.collect())
        });
        series.collect()
    }

    /// `alert`: its name; with a quotation mark after it, also labels.
    pub(crate) async fn has_fired(&self, alert: &str) -> bool {
        let query = format!("max_over_time(ALERTS{{alertstate=\"firing\",alertname=\"{alert}\"}}[1h])");
        self.value(&query).await.is_some()
    }

    pub(crate) async fn fires(&self, alert: &str) {
        eventually(&format!("{alert} fires"), async || self.has_fired(alert).await).await;
    }

    pub(crate) async fn ends(&self, alert: &str) {
        let query = format!("ALERTS{{alertname=\"{alert}\"}}");
        eventually(&format!("{alert} ends"), async || {
            self.value(&query).await.is_none()
        })
        .await;
    }
}

/// Panics if there is nothing to replace: the test would not test what it says.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no {from} in {text}");
    text.replace(from, to)
}

/// Runs promtool in the project's folder. Panics if it finds something.
pub(crate) fn promtool(arguments: &[&str]) {
    promtool_on(arguments, "");
}

/// As `promtool`, with an input.
pub(crate) fn promtool_on(arguments: &[&str], input: &str) {
    use std::io::Write as _;
    let mut command = std::process::Command::new("promtool");
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command
        .spawn()
        .expect("no `promtool` on the PATH: `make setup-tests` installs it");
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}
