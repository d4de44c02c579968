//! `quorlock completions` and `quorlock man`: what shells and `man` know of the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{self, Completions};
use crate::exit::{self, Failure};
use crate::layers::described;
use crate::out;

pub(crate) fn completions(arguments: &Completions) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut described(), "quorlock", &mut script);
    out::write(&script)?;
    Ok(exit::OK)
}

pub(crate) fn man(arguments: &args::Man) -> Result<u8, Failure> {
    let mut command = described().disable_help_subcommand(true);
    command.build();
    match &arguments.folder {
        Some(folder) => write_pages(&command, folder)
            .map_err(|error| Failure::system(&format!("write into {}", folder.display()), &error))?,
        None => {
            let page = page(&command).map_err(|error| Failure::system("make the page", &error))?;
            out::write(&page)?;
        }
    }
    Ok(exit::OK)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for command in [command].into_iter().chain(command.get_subcommands()) {
        let name = Man::new(command.clone()).get_filename();
        fs::write(folder.join(name), page(command)?)?;
    }
    Ok(())
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let codes = command.get_after_help().map(ToString::to_string);
    exit_status(&codes.unwrap_or_default()).to_writer(&mut page)?;
    Ok(page)
}

/// Returns a table of exit codes as a list, which man wraps.
fn exit_status(table: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for line in table.lines().skip(1) {
        let line = line.trim_start();
        match line.split_once("  ") {
            Some((code, meaning)) => {
                roff.control("TP", []);
                roff.text([bold(code)]);
                roff.text([roman(meaning)]);
            }
            None => {
                roff.text([roman(line)]);
            }
        }
    }
    roff
}
