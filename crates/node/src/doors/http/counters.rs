//! How requests ended, by store.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use runtime::http::StatusCode;

use crate::metrics::{Counter, Metrics};

/// What requests are counted as that are about no store of the cluster.
const NO_STORE: &str = "-";

/// The outcomes, as metrics call them.
const OUTCOMES: [&str; 5] = ["done", "absent", "refused", "unavailable", "unknown"];

/// The requests of one worker's door.
pub(super) struct Requests {
    metrics: Arc<Metrics>,
    /// By store, one counter for each outcome. Bounded as the stores of a cluster are.
    counters: Mutex<BTreeMap<String, [Counter; OUTCOMES.len()]>>,
}

impl Requests {
    /// Those about no store are told from the start.
    pub(super) fn new(metrics: Arc<Metrics>) -> Requests {
        let counters = BTreeMap::from([(NO_STORE.to_owned(), counters(&metrics, NO_STORE))]);
        Requests { metrics, counters: Mutex::new(counters) }
    }

    /// A request about a store of the cluster, or about none, was answered with this status.
    pub(super) fn count(&self, store: Option<&str>, status: StatusCode) {
        let store = store.unwrap_or(NO_STORE);
        let mut counters = self.counters.lock();
        if !counters.contains_key(store) {
            counters.insert(store.to_owned(), self::counters(&self.metrics, store));
        }
        counters[store][outcome(status)].increment();
    }
}

/// The counters of a store, one for each outcome.
fn counters(metrics: &Metrics, store: &str) -> [Counter; OUTCOMES.len()] {
    OUTCOMES.map(|outcome| {
        metrics.counter("tontine_http_requests_total", &[("store", store), ("outcome", outcome)])
    })
}

fn outcome(status: StatusCode) -> usize {
    match status.as_u16() {
        ..400 => 0,
        404 => 1,
        503 => 3,
        504 => 4,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_store_and_by_the_outcome_of_their_status() {
        let metrics = Metrics::new();
        let requests = Requests::new(metrics.clone());
        for status in [200, 204, 300, 404, 400, 412, 503, 504] {
            requests.count(Some("default"), StatusCode::from_u16(status).unwrap());
        }
        requests.count(None, StatusCode::OK);
        let text = metrics.text();
        for (store, outcome, count) in [
            ("default", "done", 3),
            ("default", "absent", 1),
            ("default", "refused", 2),
            ("default", "unavailable", 1),
            ("default", "unknown", 1),
            ("-", "done", 1),
        ] {
            let line =
                format!("tontine_http_requests_total{{store=\"{store}\",outcome=\"{outcome}\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
