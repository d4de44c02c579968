//! Calls that are dropped before they end.

use std::pin::pin;

/// Polls the future this many times at most, then drops it. Returns `None` if it was dropped.
pub(crate) async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(|cx| {
        let Some(fewer) = left.checked_sub(1) else {
            return std::task::Poll::Ready(None);
        };
        left = fewer;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}
