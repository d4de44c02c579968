//! The commands for shells and packages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::exit;

/// Print completions for a shell
///
/// bash: `source <(quorlock completions bash)` in ~/.bashrc. Packages install the output, for example as
/// /usr/share/bash-completion/completions/quorlock.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_COMPLETIONS)]
pub(crate) struct Completions {
    pub(crate) shell: Shell,
}

/// Print the manual page, or write the pages of all commands into a folder
///
/// `quorlock man | man -l -` shows the page. Packages install those of `quorlock man DIR`, for example in /usr/share/man/man1.
#[derive(Debug, Args)]
#[command(after_help = exit::OF_MAN)]
pub(crate) struct Man {
    /// The folder, which is created if it is missing
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}
