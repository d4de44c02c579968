//! Starts the command, or says why it cannot be started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::io::Errno;

use crate::exit::{self, Failure};
use crate::suspension;

/// How many bytes of a script's first line the kernel reads.
const FIRST_LINE: u64 = 256;

/// Where the system looks for commands if PATH is not set.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Starts `command` in its own process group, with these variables. A variable without a value is removed.
pub(crate) fn spawn(command: &[OsString], environment: &[(&str, Option<&str>)]) -> Result<Child, Failure> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::usage("no command"))?;
    let in_group = |mut command: Command| {
        command.process_group(0);
        for &(name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        suspension::unblocked(|| command.spawn())
    };
    let mut run = Command::new(program);
    run.args(arguments);
    let spawned = match in_group(run) {
        // A script that names no interpreter is run by `sh`, as shells do.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOEXEC) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec \"$0\" \"$@\""]).args(command);
            in_group(shell)
        }
        spawned => spawned,
    };
    spawned.map_err(|error| not_run(program, &error))
}

/// Checks that the command exists, before anything waits for a lock.
pub(crate) fn look_for(command: &[OsString]) -> Result<(), Failure> {
    match command.first() {
        Some(program) if find(program).is_none() => Err(not_found(program)),
        _ => Ok(()),
    }
}

fn not_found(program: &OsStr) -> Failure {
    let name = program.to_string_lossy();
    Failure::new(exit::NOT_FOUND, format!("{name}: command not found"))
}

fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    let name = program.to_string_lossy();
    let cannot = |why: String| Failure::new(exit::NOT_EXECUTABLE, format!("{name}: cannot execute: {why}"));
    match (error.kind(), find(program)) {
        (ErrorKind::NotFound, None) => not_found(program),
        (ErrorKind::NotFound, Some(file)) => cannot(match interpreter(&file) {
            Some(interpreter) => format!("its interpreter {interpreter} is missing"),
            None => "its loader or a library is missing".to_owned(),
        }),
        _ => cannot(error.to_string()),
    }
}

/// Returns the file that a command's name means. `None` if there is none.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|file| file.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Returns the interpreter in a script's first line. `None` if there is none.
fn interpreter(script: &Path) -> Option<String> {
    let mut line = Vec::new();
    let file = File::open(script).ok()?.take(FIRST_LINE);
    BufReader::new(file).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    line.split_whitespace().next().map(str::to_owned)
}
