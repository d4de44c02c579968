//! Hears of panics wherever they happen: a background task that panics is gone without a word.

use std::panic;
use std::sync::{Arc, Mutex};
use std::thread;

/// From when it is set, it hears of all panics of this process, other than those that fail another test.
pub(crate) struct Alarm(Arc<Mutex<Vec<String>>>);

impl Alarm {
    pub(crate) fn set() -> Alarm {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let before = panic::take_hook();
        let hearing = heard.clone();
        panic::set_hook(Box::new(move |info| {
            // A test's thread bears its name, and its module's; a runtime's threads do not.
            if !thread::current().name().is_some_and(|name| name.contains("::")) {
                hearing.lock().unwrap().push(info.to_string());
            }
            before(info);
        }));
        Alarm(heard)
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn assert_silent(&self, what: &str) {
        let heard = self.heard();
        assert!(heard.is_empty(), "{what}: {heard:#?}");
    }
}
