//! A terminal, and a session on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitStatus;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{tcgetwinsize, tcsetwinsize};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout, timeout_at};

use crate::support::{PATIENCE, isolate};

/// A session on a terminal. Dropping it kills the first process, and the kernel hangs up on the others.
pub(crate) struct Terminal {
    keyboard: File,
    screen: UnboundedReceiver<Vec<u8>>,
    shown: String,
    child: Child,
}

impl Terminal {
    /// Starts `command` as the session's first process. `set_up` adds to its environment.
    pub(crate) fn start(command: &[&str], set_up: impl FnOnce(&mut Command)) -> Terminal {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        // A process that inherited it would keep the terminal alive.
        fcntl_setfd(&keyboard, FdFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let end = || File::options().read(true).write(true).open(path).unwrap();
        let keyboard = File::from(keyboard);
        let mut setsid = Command::new("setsid");
        setsid
            .arg("--ctty")
            .args(command)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .kill_on_drop(true);
        isolate(&mut setsid);
        set_up(&mut setsid);
        let child = setsid.spawn().unwrap();
        drop(setsid); // it keeps the terminal open
        let (tell, screen) = unbounded_channel();
        let mut output = keyboard.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            // Ends with an error once no process has the terminal open.
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                let _ = tell.send(buffer[..read].to_vec());
            }
        });
        Terminal {
            keyboard,
            screen,
            shown: String::new(),
            child,
        }
    }

    /// Waits until this text is shown, after all texts that were waited for before.
    pub(crate) async fn shows(&mut self, text: &str) {
        let give_up = Instant::now() + PATIENCE;
        let position = loop {
            if let Some(position) = self.shown.find(text) {
                break position;
            }
            let more = timeout_at(give_up, self.screen.recv()).await;
            let Ok(Some(more)) = more else {
                panic!("no {text:?} in {:?}", self.shown);
            };
            self.shown.push_str(&String::from_utf8_lossy(&more));
        };
        self.shown.drain(..position + text.len());
    }

    /// Waits until the screen as a whole contains this text. For programs that move the cursor, instead of `shows`.
    pub(crate) async fn draws(&mut self, screen: &mut vt100::Parser, text: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !screen.screen().contents().contains(text) {
            let more = timeout_at(give_up, self.screen.recv()).await;
            let Ok(Some(more)) = more else {
                panic!("no {text:?} in {}", screen.screen().contents());
            };
            screen.process(&more);
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let mut size = tcgetwinsize(&self.keyboard).unwrap();
        (size.ws_row, size.ws_col) = (rows, columns);
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Waits until all processes have ended. Returns the first one's status, and the rest of the output.
    pub(crate) async fn end(mut self) -> (ExitStatus, String) {
        let status = timeout(PATIENCE, self.child.wait())
            .await
            .expect("the session's first process did not end in time");
        while let Some(more) = timeout(PATIENCE, self.screen.recv())
            .await
            .expect("the session did not end in time")
        {
            self.shown.push_str(&String::from_utf8_lossy(&more));
        }
        (status.unwrap(), self.shown)
    }
}
