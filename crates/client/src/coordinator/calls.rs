//! The calls of one request that are still out, and its clock.

use std::future::poll_fn;
use std::task::Poll;

use model::Moment;
use runtime::{BoxFuture, Clock};
use smallvec::SmallVec;
use wire::messages::Response;

use crate::peers::{Call, CallError};

/// A few calls, each with what is needed to tell whose answer came. Polled one by one: there are rarely more than
/// three.
pub(super) struct Calls<T> {
    out: SmallVec<[(T, Answer); 4]>,
    timer: Option<(Moment, BoxFuture<'static, ()>)>,
}

type Answer = BoxFuture<'static, Result<Response, CallError>>;

impl<T: Unpin> Calls<T> {
    pub(super) fn new() -> Self {
        Calls { out: SmallVec::new(), timer: None }
    }

    /// Keeps a call that is under way; hands back one that is answered already.
    pub(super) fn add(&mut self, tag: T, call: Call) -> Option<(T, Result<Response, CallError>)> {
        match call {
            Call::Ready(answer) => Some((tag, answer)),
            Call::Pending(future) => {
                self.out.push((tag, future));
                None
            }
        }
    }

    /// Waits for the first answer; `None` when the deadline comes before it.
    pub(super) async fn next(
        &mut self,
        clock: &dyn Clock,
        deadline: Moment,
    ) -> Option<(T, Result<Response, CallError>)> {
        if self.timer.as_ref().is_none_or(|(rings_at, _)| *rings_at > deadline) {
            self.timer = Some((deadline, clock.sleep_until(deadline)));
        }
        let came = poll_fn(|context| {
            for position in 0..self.out.len() {
                if let Poll::Ready(answer) = self.out[position].1.as_mut().poll(context) {
                    let (tag, _) = self.out.swap_remove(position);
                    return Poll::Ready(Some((tag, answer)));
                }
            }
            let (_, timer) = self.timer.as_mut().expect("set above");
            timer.as_mut().poll(context).map(|()| None)
        })
        .await;
        if came.is_none() {
            self.timer = None;
        }
        came
    }
}
