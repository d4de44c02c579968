//! Results, on standard output.

use std::io::{ErrorKind, Write, stdout};

use crate::exit::Failure;

/// Prints a result.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match stdout().lock().write_all(text.as_bytes()) {
        // A reader that has left needs no answer.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::system("print the result", &error))
        }
        _ => Ok(()),
    }
}
