//! What work in the background has in common: it lets others go first.
//!
//! Must never: know what is worked at.

/// Lets other tasks of the thread go first.
pub(crate) async fn breathe() {
    let mut breathed = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut breathed, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
