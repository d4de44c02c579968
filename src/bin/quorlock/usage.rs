//! Wrong command lines, and requests for help.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::args::Output;
use crate::end::End;
use crate::exit::{self, Failure};
use crate::report::Report;

/// Prints clap's message: as an event if it is an error and `--json` is given, otherwise as text.
pub(crate) fn end(error: &clap::Error, words: &[OsString]) -> ExitCode {
    // clap may have stopped in front of the option.
    let json = words
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json");
    if !json || !error.use_stderr() {
        error.exit();
    }
    let report = Report::start(&Output {
        verbose: 0,
        quiet: false,
        json,
    });
    report.failure(&Failure::usage(self::words(error)));
    report.flush();
    End::Code(exit::USAGE).exit()
}

pub(crate) fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Returns clap's message as one line, without advice about `--help`.
pub(crate) fn words(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
