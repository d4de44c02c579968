//! The library's log, as events.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, registry};

use crate::args::Output;
use crate::event::{Event, Weight};
use crate::exit::Failure;
use crate::report::Report;
use crate::variables::LOG;

/// Sends the library's log to `report`, without warnings about nodes' settings if `settings_shown`.
pub(crate) fn start(report: &Report, output: &Output, settings_shown: bool) -> Result<(), Failure> {
    let filters = match std::env::var(LOG) {
        Ok(filters) if !filters.is_empty() => filters,
        _ => match (output.quiet, output.verbose) {
            (true, _) => "error",
            (false, 0 | 1) if settings_shown => "warn,quorlock::redis::endpoint=error",
            // The tool itself reports a lost lease, and another list of nodes.
            (false, 0 | 1) => "warn,quorlock::lease=error,quorlock::redis::membership=error",
            (false, 2) => "quorlock=debug,warn",
            (false, _) => "trace",
        }
        .to_owned(),
    };
    let filter = EnvFilter::try_new(filters)
        .map_err(|error| Failure::usage(format!("{LOG} is no filter like quorlock=debug: {error}")))?;
    registry()
        .with(filter)
        .with(ReportLayer(report.clone()))
        .try_init()
        .map_err(|error| Failure::system("start logging", &error))
}

struct ReportLayer(Report);

impl<S: Subscriber> Layer<S> for ReportLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        let weight = match *event.metadata().level() {
            Level::ERROR => Weight::Error,
            Level::WARN => Weight::Warning,
            Level::INFO => Weight::Detail,
            _ => Weight::Trifle,
        };
        // The filter has decided already, so the weight does not matter.
        self.0.print(&Event::Log {
            weight,
            text: &words.text(),
        });
    }
}

/// The text of one event: `node: message key=value …`.
#[derive(Default)]
struct Words {
    node: String,
    message: String,
    others: String,
}

impl Words {
    fn text(&self) -> String {
        match self.node.is_empty() {
            true => format!("{}{}", self.message, self.others),
            false => format!("{}: {}{}", self.node, self.message, self.others),
        }
    }
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "node" => write!(self.node, "{value:?}"),
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }
}
