//! Prints results on standard output. `docs/schema` has the schemas of all that is printed as JSON.

use std::io::{ErrorKind, Write, stdout};

use serde_json::Value;

use crate::exit::Failure;
use crate::format::json_line;
use crate::report::Report;

pub(crate) fn print(
    report: &Report,
    document: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    print_one(report, document, text).map(drop)
}

/// Prints one of several results. Returns `false` if no more are wanted.
pub(crate) fn print_one(
    report: &Report,
    document: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<bool, Failure> {
    let text = match report.is_json() {
        true => json_line(document()),
        false => text(),
    };
    write(text.as_bytes())
}

/// Prints text of any kind. Returns `false` if no more is wanted.
pub(crate) fn write(text: &[u8]) -> Result<bool, Failure> {
    match stdout().lock().write_all(text) {
        // The reader has closed the pipe: it wants no more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("print the result", &error)),
        Ok(()) => Ok(true),
    }
}
