//! Captures the log for tests.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, Once};

use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

thread_local! {
    static LOG: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// All that this thread logs, at every level.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// Ends the log of its thread when dropped.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        LOG.set(None);
    }
}

impl Log {
    pub(crate) fn start() -> (Log, Guard) {
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            let written = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_writer(|| LOG.with_borrow(|log| log.clone().unwrap_or_default()))
                .with_filter(dynamic_filter_fn(|_, _| LOG.with_borrow(Option::is_some)));
            tracing_subscriber::registry().with(written).init();
        });
        let log = Log::default();
        LOG.set(Some(log.clone()));
        (log, Guard(()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// With a subscriber for each thread, `tracing` would switch off callsites that another thread reaches first, for all threads.
#[test]
fn a_callsite_that_another_thread_reached_first_is_logged() {
    fn met() {
        tracing::info!("met");
    }
    let (log, _guard) = Log::start();
    std::thread::spawn(met).join().unwrap();
    met();
    assert_eq!(log.text().matches("met").count(), 1);
}
