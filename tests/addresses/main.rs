//! Names that lead to several addresses, or from one server to another.
//!
//! The program starts itself again in a mount namespace with its own hosts file. No name server is asked.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/log.rs"]
mod log;
mod moving;
mod network;
mod several;

use std::ffi::OsStr;
use std::process::{Command, ExitCode};
use std::{env, fs};

use libtest_mimic::{Arguments, Trial};

const INSIDE: &str = "QUORLOCK_HOSTS_ARE_OURS";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if env::var_os(INSIDE).is_none() {
        return go_inside();
    }
    let trials = [several::trials(), moving::trials()];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}

/// Runs this program again with its own hosts file.
fn go_inside() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("hosts"), "").unwrap();
    fs::write(folder.path().join("nsswitch.conf"), "hosts: files\n").unwrap();
    let mount =
        "set -e; for file in hosts nsswitch.conf; do mount --bind \"$0/$file\" /etc/$file; done; exec \"$@\"";
    let inside = |options: &[&str], program: &OsStr| {
        let mut command = Command::new("unshare");
        command.args(options).args(["/bin/sh", "-c", mount]);
        command.arg(folder.path()).arg(program).env(INSIDE, "1");
        command
    };
    let is_allowed = |options: &&&[&str]| {
        let tried = inside(options, "true".as_ref()).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let options: [&[&str]; 2] = [&["--mount"], &["--mount", "--map-root-user"]];
    let Some(options) = options.iter().find(is_allowed) else {
        eprintln!(
            "\naddresses: NOT RUN: namespaces are not allowed here (run as root, or allow them to users)\n"
        );
        return ExitCode::SUCCESS;
    };
    let mut command = inside(options, env::current_exe().unwrap().as_os_str());
    let ended = command.args(env::args_os().skip(1)).status().unwrap();
    if ended.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The test has its own runtime, on one thread.
fn trial<F: Future<Output = ()>>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work());
        Ok(())
    })
}
