//! Reaping values that have expired (`docs/design/healing.md`, *Expiry*): at this node, whatever the others do.
//!
//! `stores::expiry` knows what is due and what reaping a key means; here is when and how fast.
//!
//! Must never: hold up requests. A step is short, and a rest follows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::Moment;
use runtime::panics::whole;
use runtime::{Clock, Ports};

use crate::chores::{Board, Chore, Rest, RoundTold, begin};
use crate::events::{Event, Events};
use crate::stores::{EXPIRY_MARGIN, LocalStore};
use crate::view::{CurrentView, View};

/// Pause between looks at what is due. Default of [`ExpiryOptions::interval`].
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Keys of one step: a few milliseconds of the background thread.
const STEP_KEYS: usize = 64;
/// Rest after a step; together a bound of about 12,000 keys a second.
const STEP_REST: Duration = Duration::from_millis(5);
/// How often at most an event tells of each store's reaped values.
const EVENT_INTERVAL: Duration = Duration::from_secs(600);

/// How a node reaps.
#[derive(Clone, Copy, Debug)]
pub struct ExpiryOptions {
    /// How long a value keeps its space after it has expired: longer than clocks of nodes ever differ. Default:
    /// [`EXPIRY_MARGIN`].
    pub margin: Duration,
    /// Pause between looks at what is due. Default: [`INTERVAL`].
    pub interval: Duration,
}

impl Default for ExpiryOptions {
    fn default() -> Self {
        ExpiryOptions { margin: EXPIRY_MARGIN, interval: INTERVAL }
    }
}

/// What was told of a store's reaped values: when, how many, how many bytes.
type Told = (Moment, u64, u64);

/// Reaps what has expired.
struct Reap {
    view: Weak<CurrentView>,
    clock: Arc<dyn Clock>,
    events: Arc<Events>,
    interval: Duration,
    told: BTreeMap<String, Told>,
}

/// Reaps as long as the node lives.
pub(crate) fn start(
    view: &Arc<CurrentView>,
    ports: &Ports,
    board: &Arc<Board>,
    events: Arc<Events>,
    options: ExpiryOptions,
) {
    let (clock, interval) = (ports.clock.clone(), options.interval);
    let view = Arc::downgrade(view);
    let reap = move || {
        let (view, clock, events) = (view.clone(), clock.clone(), events.clone());
        Reap { view, clock, events, interval, told: BTreeMap::new() }
    };
    begin(ports, board, Rest::For(interval), reap);
}

impl Chore for Reap {
    const NAME: &'static str = "reap";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let Some(current) = self.view.upgrade() else { return Rest::Ended };
        for store in current.get().stores() {
            // What was taken as due and is not reaped would be forgotten until the next start.
            while whole(|| step(&current.get(), store, &*self.clock, told)) == STEP_KEYS {
                self.clock.sleep(STEP_REST).await;
            }
            tell(store, &self.events, self.clock.now(), &mut self.told);
        }
        Rest::For(self.interval)
    }
}

/// Reaps a few keys; how many were looked at.
fn step(view: &View, store: &LocalStore, clock: &dyn Clock, told: &RoundTold<'_>) -> usize {
    let now = clock.wall();
    let due = store.take_due(now, STEP_KEYS);
    if !due.is_empty() {
        // A log looks at its disk when it writes: without a look it may refuse by what was so when it was full.
        let _ = store.engine().room();
    }
    for &key in &due {
        let bucket = view.buckets().partition(key.token).id;
        if let Err(failure) = store.reap(bucket, key, now) {
            let name = &store.definition().name;
            tracing::debug!(store = %name, error = %failure, "expired value not reaped yet");
            told.failed(format_args!("an expired value of store {name} was not reaped: {failure}"));
        }
    }
    due.len()
}

fn tell(store: &LocalStore, events: &Events, now: Moment, told: &mut BTreeMap<String, Told>) {
    let (name, reaped) = (store.definition().name.to_string(), store.reaped());
    let before = told.get(&name).copied();
    let (values, bytes) = before.map_or((0, 0), |(_, values, bytes)| (values, bytes));
    let early = before.is_some_and(|(at, ..)| now.since(at) < EVENT_INTERVAL);
    if reaped.values == values || early {
        return;
    }
    let (values, bytes) = (reaped.values - values, reaped.bytes - bytes);
    events.record(Event::ExpiredReaped { store: name.clone(), values, bytes });
    told.insert(name, (now, reaped.values, reaped.bytes));
}
