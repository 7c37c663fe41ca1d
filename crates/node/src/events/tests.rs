//! Events are kept in order, bounded, and told with their numbers.

use super::*;

fn events() -> Arc<Events> {
    Events::new(NodeId(1), 77, Arc::new(runtime::clock::os::OsClock::new()))
}

fn down(peer: u32) -> Event {
    Event::PeerDown { peer: NodeId(peer), why: "missed heartbeats".to_owned() }
}

#[test]
fn the_oldest_events_are_dropped_first_and_a_gap_in_the_numbers_shows_it() {
    let events = events();
    for peer in 0..EVENTS_MAX as u32 + 10 {
        events.record(down(peer));
    }
    let page = events.page(0, 0, 3);
    assert_eq!(page.events[0].sequence, 11, "ten are forgotten");
    assert_eq!(page.next, 13);
    assert_eq!(events.page(77, page.next, 1).events[0].sequence, 14);
    assert_eq!(events.after(0, usize::MAX).len(), EVENTS_MAX);
    assert_eq!(events.recorded(), EVENTS_MAX as u64 + 10);
}

#[test]
fn a_reader_of_an_earlier_run_starts_from_the_first_event() {
    let events = events();
    events.record(down(2));
    assert_eq!(events.page(77, 1, 10).events.len(), 0);
    assert_eq!(events.page(5, 1_000, 10).events.len(), 1);
}

#[test]
fn an_event_says_the_same_to_people_and_programs() {
    let event = down(2);
    assert_eq!((event.kind(), event.text().as_str()), ("peer-down", "n2 is down: missed heartbeats"));
    assert_eq!(event.fields(), serde_json::json!({ "peer": 2, "why": "missed heartbeats" }));
    let mut kinds = Event::KINDS.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), Event::KINDS.len(), "no two events share a kind");
}

#[test]
fn a_text_about_one_thing_is_in_the_singular() {
    let parked = |hints| Event::HintsParked { target: NodeId(2), hints }.text();
    assert_eq!((parked(1), parked(2)), ("holds 1 hint for n2".to_owned(), "holds 2 hints for n2".to_owned()));
}

#[tokio::test]
async fn a_waiting_reader_gets_the_next_event() {
    let events = events();
    events.record(down(2));
    events.wait(0, 0).await;
    let waiting = events.clone();
    let waiter = tokio::spawn(async move { waiting.wait(77, 1).await });
    events.record(down(3));
    waiter.await.unwrap();
}
