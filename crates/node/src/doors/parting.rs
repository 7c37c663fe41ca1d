//! The last words of a connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::select;
use protocol::admission::{Admission, FAREWELL_TIME_MAX};
use runtime::Clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Says something for the last time, and gives the client the time to read it. Where too many are given that already,
/// it is told and closed; not when the node stops, which bounds that time for all.
pub(super) async fn part<S>(
    mut stream: S,
    last_words: &[u8],
    (admission, stops): (&Arc<Admission>, bool),
    clock: &Arc<dyn Clock>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let farewell = admission.farewell();
    let telling = async {
        stream.write_all(last_words).await?;
        stream.shutdown().await?;
        let mut unread = [0_u8; 4096];
        if farewell.is_none() && !stops {
            // Takes what has come: closing a connection with unread bytes destroys the answer on its way.
            let mut reading = pin!(stream.read(&mut unread));
            poll_fn(|context| {
                let _ = reading.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
            return std::io::Result::Ok(());
        }
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    // The last words are a courtesy; the connection closes either way.
    select(pin!(telling), clock.sleep(FAREWELL_TIME_MAX)).await;
}
