//! Events as they happen, in the form that browsers and many libraries read (server-sent events).
//!
//! ```text
//!   id: 8412-17
//!   data: {"sequence":17,"at_ms":…,"kind":"peer-down","text":…,"fields":{…}}
//!
//!   : nothing new                      every 15 s, so that an end that is gone is noticed
//! ```
//!
//! A reader that comes back says the last id in `Last-Event-ID`. It goes on behind that, and begins anew where the node
//! has been started again: the first number of an id tells one start from another.
//!
//! Such an answer may last for days. There are few of them at a time, at a node and on a connection of HTTP/2. Each is
//! judged again before every piece: a user that was removed hears nothing more.
//!
//! Must never: hold events that its reader does not take, or keep a node from stopping.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select;
use futures_util::stream;
use model::access::Right;
use protocol::admission::AdmissionLimits;
use runtime::http::{HeaderMap, Kept, header};
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::account::AnswerRoom;
use super::answer::{EVENTS, HttpAnswer};
use super::parameters::Parameters;
use super::refused::malformed;
use super::{Door, HttpCall};
use crate::access::Caller;
use crate::doors::closing::DoorStage;
use crate::events::Page;

/// Most readers at a time, and at most one in this many of the connections that clients may have.
const READERS_MAX: usize = 64;
const CONNECTIONS_PART: usize = 4;
/// Most of them on one connection, by HTTP/2.
const CONNECTION_READERS_MAX: usize = 4;
/// Events of one piece: some kilobytes.
const PIECE_EVENTS: usize = 32;
/// After how long without an event a reader hears that there is none.
const HEARTBEAT_TIME: Duration = Duration::from_secs(15);
const HEARTBEAT: &[u8] = b": nothing new\n\n";

/// How many read events as they happen, at one node or on one connection.
#[derive(Debug, Default)]
pub(super) struct Readers(AtomicUsize);

/// A place among them; free again when this is dropped.
struct ReaderPlace {
    _of_node: ReaderTicket,
    _of_connection: ReaderTicket,
}

/// One that is counted.
struct ReaderTicket(Arc<Readers>);

impl Readers {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes a place, if there are fewer than `max`.
    fn take(self: &Arc<Self>, max: usize) -> Option<ReaderTicket> {
        let more = |count: usize| (count < max).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ReaderTicket(Arc::clone(self)))
    }
}

impl Drop for ReaderTicket {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReaderPlace {
    fn take(call: &HttpCall<'_>) -> Result<ReaderPlace, Failure> {
        let (max, own_max) = (readers_max(call.door.shared.admission.limits()), CONNECTION_READERS_MAX);
        let refused = |detail| Failure::new(ErrorCode::Overloaded, detail);
        let of_connection = call.readers.take(own_max).ok_or_else(|| {
            refused(format!(
                "{own_max} requests of this connection read events as they happen, and that is its limit"
            ))
        })?;
        let of_node = call.door.shared.readers.take(max).ok_or_else(|| {
            refused(format!("{max} readers of this node's events as they happen are its limit"))
        })?;
        Ok(ReaderPlace { _of_node: of_node, _of_connection: of_connection })
    }
}

fn readers_max(limits: &AdmissionLimits) -> usize {
    (limits.connections_max / CONNECTIONS_PART).clamp(1, READERS_MAX)
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EventPlace {
    run: u64,
    after: u64,
}

/// A stream of events on its way.
struct EventStream {
    door: Door,
    who: Arc<Caller>,
    room: Arc<AnswerRoom>,
    place: EventPlace,
    _reader: ReaderPlace,
}

/// Whether a request asks for events as they happen.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(','));
    kinds.any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(EVENTS)))
}

/// Answers with events as they happen.
pub(super) fn answer(call: &HttpCall<'_>) -> Result<HttpAnswer, HttpAnswer> {
    let parameters = Parameters::of_none(call)?;
    if parameters.limit.is_some() || parameters.wait_ms.is_some() {
        return Err(malformed("events that are sent as they happen have neither limit nor wait"));
    }
    let known = call.head.headers.get("last-event-id");
    let asked =
        EventPlace { run: parameters.run.unwrap_or_default(), after: parameters.after.unwrap_or_default() };
    // Another server's id is none of ours: it begins anew.
    let place = known.map_or(asked, |id| place_of(id.as_bytes()).unwrap_or_default());
    call.judge("", None)?;
    let reader = ReaderPlace::take(call).map_err(|failure| HttpAnswer::failure(&failure))?;
    if call.is_head() {
        return Ok(HttpAnswer::events(Box::pin(stream::empty())));
    }
    let (door, room) = (call.door.clone(), call.room.clone());
    let events = EventStream { door, who: call.who.clone(), room, place, _reader: reader };
    let pieces = stream::unfold(events, |mut events| async move {
        let piece = events.next().await?;
        Some((piece, events))
    });
    Ok(HttpAnswer::events(Box::pin(pieces)))
}

/// The place behind the event with this id.
fn place_of(id: &[u8]) -> Option<EventPlace> {
    let (run, after) = std::str::from_utf8(id).ok()?.split_once('-')?;
    Some(EventPlace { run: run.parse().ok()?, after: after.parse().ok()? })
}

impl EventStream {
    /// The next piece; `None` when there is none any more for this reader.
    async fn next(&mut self) -> Option<Kept> {
        if self.door.shared.closing.stage() > DoorStage::Open || self.judge().is_err() {
            return None;
        }
        let clock = self.door.front.clock().clone();
        let mut page = self.page();
        if page.events.is_empty() {
            let events = &self.door.desk.telling.events;
            let something = select(
                Box::pin(events.wait(self.place.run, self.place.after)),
                select(clock.sleep(HEARTBEAT_TIME), Box::pin(self.door.closing())),
            );
            something.await;
            if self.door.shared.closing.stage() > DoorStage::Open || self.judge().is_err() {
                return None;
            }
            page = self.page();
        }
        if page.events.is_empty() {
            return Some(Kept::new(Bytes::from_static(HEARTBEAT), None));
        }
        let text = text(&page);
        let room = self.room.hold(text.len(), clock.now()).ok()?;
        self.place = EventPlace { run: page.run, after: page.next };
        Some(Kept::new(text.into(), Some(Box::new(room))))
    }

    fn page(&self) -> Page {
        self.door.desk.telling.events.page(self.place.run, self.place.after, PIECE_EVENTS)
    }

    fn judge(&self) -> Result<(), Failure> {
        self.who.judge(self.door.view(), Right::Observe, "", None)
    }
}

/// A page of events as they are sent.
fn text(page: &Page) -> String {
    let mut text = String::new();
    for event in &page.events {
        // JSON has no line ends, and writing into memory cannot fail.
        let data = serde_json::to_string(event).unwrap_or_default();
        let _ = write!(text, "id: {}-{}\ndata: {data}\n\n", page.run, event.sequence);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_where_to_resume() {
        assert_eq!(place_of(b"8412-17"), Some(EventPlace { run: 8412, after: 17 }));
        for other in [&b""[..], b"17", b"-", b"a-1", b"1-b", b"1-2-3", b"\xff-1"] {
            assert_eq!(place_of(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn a_stream_of_events_is_sent_only_to_readers_that_accept_it() {
        let wants = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| {
                headers.append(header::ACCEPT, line.parse().unwrap());
            });
            is_wanted(&headers)
        };
        assert!(wants(&["text/event-stream"]) && wants(&["application/json, Text/Event-Stream;q=0.9"]));
        assert!(wants(&["*/*", "text/event-stream"]));
        assert!(!wants(&[]) && !wants(&["*/*"]) && !wants(&["application/json"]));
    }

    #[test]
    fn readers_leave_connections_to_other_clients() {
        let of = |connections_max| readers_max(&AdmissionLimits { connections_max, ..Default::default() });
        assert_eq!([1, 8, 100, 10_000].map(of), [1, 2, 25, READERS_MAX]);
    }
}
