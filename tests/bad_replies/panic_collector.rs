//! Collects panics of background tasks, which would otherwise stay unseen.

use std::panic;
use std::sync::{Arc, Mutex};
use std::thread;

/// Collects the panics of this process, except those that fail another test, from when it is set.
pub(crate) struct PanicCollector(Arc<Mutex<Vec<String>>>);

impl PanicCollector {
    pub(crate) fn set() -> PanicCollector {
        let panics: Arc<Mutex<Vec<String>>> = Arc::default();
        let before = panic::take_hook();
        let collected = panics.clone();
        panic::set_hook(Box::new(move |info| {
            // A test's thread has the name of the test and its module; a runtime's threads do not.
            if !thread::current().name().is_some_and(|name| name.contains("::")) {
                collected.lock().unwrap().push(info.to_string());
            }
            before(info);
        }));
        PanicCollector(panics)
    }

    pub(crate) fn panics(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn assert_none(&self, what: &str) {
        let panics = self.panics();
        assert!(panics.is_empty(), "{what}: {panics:#?}");
    }
}
