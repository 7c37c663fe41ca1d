//! What a node refuses, by reason: counted for whoever scrapes it, and told in the log at most once in ten seconds each.
//!
//! A full disk or a crowd of clients refuses thousands of requests a second. The log says that it happens, how often,
//! and why, in one line for each reason; the counter has the exact number.
//!
//! Must never: log what a request was about. The text of a refusal may name a key.

use std::sync::Arc;
use std::time::Duration;

use model::{Moment, NodeId};
use parking_lot::Mutex;
use wire::error::ErrorCode;

use crate::audit::Audit;
use crate::metrics::{Counter, Metrics};

/// Time between two lines of the log about the same reason.
pub(crate) const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// What commands of Redis clients count as that were wrong by themselves. The protocol has no code for them.
const REJECTED: &str = "rejected-command";

/// The refusals of one node, over all its doors and workers.
pub(crate) struct Refusals {
    node: NodeId,
    reasons: Vec<Reason>,
    told: Mutex<Vec<RefusalsTold>>,
    audit: Arc<Audit>,
}

struct Reason {
    /// `None` for [`REJECTED`].
    code: Option<ErrorCode>,
    counter: Counter,
}

/// How many refusals of a reason the log knows of, and since when.
#[derive(Clone, Copy, Default)]
struct RefusalsTold {
    count: u64,
    at: Option<Moment>,
}

/// One line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RefusalLine {
    code: &'static str,
    /// Refusals since the last line.
    count: u64,
    total: u64,
    level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Refusals {
    /// Nothing has been refused.
    pub(crate) fn new(node: NodeId, metrics: &Metrics, audit: Arc<Audit>) -> Arc<Refusals> {
        let codes = ErrorCode::ALL.iter().copied().map(Some).chain([None]);
        let reason = |code: Option<ErrorCode>| {
            let name = code.map_or(REJECTED, ErrorCode::name);
            Reason { code, counter: metrics.counter("tontine_node_errors_total", &[("code", name)]) }
        };
        let reasons: Vec<Reason> = codes.map(reason).collect();
        let told = Mutex::new(vec![RefusalsTold::default(); reasons.len()]);
        Arc::new(Refusals { node, reasons, told, audit })
    }

    /// Where it is written down who was refused.
    pub(crate) fn audit(&self) -> &Arc<Audit> {
        &self.audit
    }

    /// A request was answered with this error.
    pub(crate) fn count(&self, code: ErrorCode) {
        self.count_reason(Some(code));
    }

    /// A command was wrong by itself.
    pub(crate) fn count_rejected(&self) {
        self.count_reason(None);
    }

    fn count_reason(&self, code: Option<ErrorCode>) {
        let reason = self.reasons.iter().find(|reason| reason.code == code);
        reason.expect("every code has a counter").counter.increment();
    }

    /// Writes to the log, and to the audit log, what was refused since it was told last. `rest`: also what is not due yet, because the node
    /// stops.
    pub(crate) fn tell(&self, now: Moment, rest: bool) {
        self.audit.tell(rest);
        for RefusalLine { code, count, total, level } in self.lines(now, rest) {
            let node = self.node;
            match level {
                Level::Error => tracing::error!(%node, code, count, total, "requests refused"),
                Level::Warn => tracing::warn!(%node, code, count, total, "requests refused"),
                Level::Info => tracing::info!(%node, code, count, total, "requests refused"),
                Level::Debug => tracing::debug!(%node, code, count, total, "requests refused"),
            }
        }
    }

    fn lines(&self, now: Moment, rest: bool) -> Vec<RefusalLine> {
        let mut lines = Vec::new();
        for (Reason { code, counter }, told) in self.reasons.iter().zip(&mut *self.told.lock()) {
            let total = counter.get();
            let is_due = rest || told.at.is_none_or(|at| now.since(at) >= TELL_INTERVAL);
            if total == told.count || !is_due {
                continue;
            }
            let name = code.map_or(REJECTED, ErrorCode::name);
            lines.push(RefusalLine { code: name, count: total - told.count, total, level: level(*code) });
            *told = RefusalsTold { count: total, at: Some(now) };
        }
        lines
    }
}

/// How much a refusal concerns whoever looks after the node.
fn level(code: Option<ErrorCode>) -> Level {
    match code {
        // The answer to a question, or a mistake of the application.
        None => Level::Info,
        Some(ErrorCode::ConditionFailed | ErrorCode::Obsolete | ErrorCode::StaleGeneration) => Level::Debug,
        Some(ErrorCode::StorageFailed | ErrorCode::Corrupt | ErrorCode::Internal) => Level::Error,
        Some(_) => Level::Warn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_at_once_and_then_at_most_every_ten_seconds() {
        let metrics = Metrics::new();
        let audit = Audit::new(NodeId(1), Arc::new(runtime::clock::os::OsClock::new()), None);
        let refusals = Refusals::new(NodeId(1), &metrics, audit);
        let start = Moment::default().after(Duration::from_secs(100));
        let later = |seconds: u64| start.after(Duration::from_secs(seconds));
        let told = |now: Moment, rest: bool| {
            let lines = refusals.lines(now, rest);
            lines.iter().map(|line| (line.code, line.count, line.total)).collect::<Vec<_>>()
        };
        assert_eq!(told(start, true), [], "nothing was refused");
        (0..3).for_each(|_| refusals.count(ErrorCode::DiskFull));
        assert_eq!(told(start, false), [("disk-full", 3, 3)]);
        (0..5).for_each(|_| refusals.count(ErrorCode::DiskFull));
        refusals.count_rejected();
        assert_eq!(told(later(9), false), [("rejected-command", 1, 1)]);
        assert_eq!(told(later(10), false), [("disk-full", 5, 8)]);
        assert_eq!(told(later(60), false), []);
        refusals.count(ErrorCode::DiskFull);
        assert_eq!(told(later(61), false), [("disk-full", 1, 9)]);
        refusals.count(ErrorCode::DiskFull);
        assert_eq!(told(later(62), true), [("disk-full", 1, 10)], "the node stops");
        assert!(metrics.text().contains("tontine_node_errors_total{code=\"disk-full\"} 10\n"));
    }
}
