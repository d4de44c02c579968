//! Reads keys, and changes of the terminal's size.

use std::io;
use std::thread;

use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Reads on a thread of its own, which ends with this process, or with the terminal.
pub(super) fn read() -> io::Result<UnboundedReceiver<Event>> {
    let (tell, keys) = unbounded_channel();
    thread::Builder::new().name("keyboard".into()).spawn(move || {
        while let Ok(event) = event::read() {
            if tell.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(keys)
}
