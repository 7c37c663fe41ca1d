//! The audit log of a node as a file: one JSON document on each line, rotated as its log is.
//!
//! ```text
//!   workers ─▶ AuditLog::write ─▶ queue of LINES_MAX ─▶ a thread ─▶ node-1.audit.jsonl
//!                                    └ full: lost, counted, and said in the file
//! ```
//!
//! Must never: keep a worker waiting for a disk, or end the node because the file cannot be written.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use model::order::{Order, OrderOutcome};
use node::access::Who;
use node::audit::{AuditEntry, AuditedOrder, OrderResult, Ordered, Outlet, RefusedOrder, What};
use serde::Serialize;
use wire::error::{ErrorCode, Outcome};
use wire::messages::{AntiEntropyControl, AntiEntropyOrder};

use crate::dates;
use crate::failure::CliError;
use crate::log_file::LogFile;
use crate::words;

/// Entries that wait for the disk. More than that are lost.
const LINES_MAX: usize = 4096;
/// Characters of a sentence: names of stores may be long.
const SENTENCE_CHARS_MAX: usize = 500;
/// The file in a data directory.
const FILE: &str = "audit.jsonl";
/// How long a node that ends waits for the disk.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Where the audit log of a node goes that is told nothing: beside its log, or into its data directory.
pub(crate) fn file_of(log_file: Option<&Path>, data_dir: &Path) -> PathBuf {
    log_file.map_or_else(|| data_dir.join(FILE), |log| log.with_extension(FILE))
}

/// What the thread is told.
enum Told {
    Entry(Box<AuditEntry>),
    /// Say so when everything before is written.
    Close(SyncSender<()>),
}

/// The audit log of one node.
pub(crate) struct AuditLog {
    queue: SyncSender<Told>,
    lost: Arc<AtomicU64>,
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditLog")
    }
}

impl AuditLog {
    /// A log at this path, after what is there. Nothing is made before the first entry.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn open(path: &Path) -> Result<Arc<AuditLog>, CliError> {
        let (queue, told) = sync_channel(LINES_MAX);
        let lost = Arc::<AtomicU64>::default();
        let mut writer = Writer { file: LogFile::new(path.to_owned()), lost: lost.clone(), fails: false };
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.run(&told))
            .map_err(CliError::io("cannot start the thread of the audit log"))?;
        Ok(Arc::new(AuditLog { queue, lost }))
    }

    /// Waits until everything is written, but not for long. Blocks: the node has stopped.
    pub(crate) fn close(&self) {
        let (done, written) = sync_channel(1);
        // A queue that is full is one of a disk that does not answer.
        if self.queue.try_send(Told::Close(done)).is_ok() {
            let _ = written.recv_timeout(CLOSE_TIME_MAX);
        }
    }
}

impl Outlet for AuditLog {
    fn write(&self, entry: AuditEntry) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Told::Entry(Box::new(entry))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The end of the queue.
struct Writer {
    file: LogFile,
    /// Entries for which there was no room, or that could not be written.
    lost: Arc<AtomicU64>,
    /// Whether the last write failed, and was said to.
    fails: bool,
}

impl Writer {
    fn run(&mut self, told: &Receiver<Told>) {
        while let Ok(told) = told.recv() {
            match told {
                Told::Entry(entry) => self.put(&entry),
                // Whoever asked may not wait any more.
                Told::Close(done) => drop(done.send(())),
            }
        }
    }

    fn put(&mut self, entry: &AuditEntry) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut lines = String::new();
        if lost > 0 {
            append(&mut lines, &AuditRow::lost(entry, lost));
        }
        append(&mut lines, &AuditRow::of(entry));
        match self.file.write_all(lines.as_bytes()) {
            Ok(()) => self.fails = false,
            Err(error) => {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(node = %entry.node, %error, "audit log not written");
                }
            }
        }
    }
}

fn append(lines: &mut String, line: &AuditRow<'_>) {
    // A line is plain data, so this does not fail.
    lines.push_str(&serde_json::to_string(line).unwrap_or_default());
    lines.push('\n');
}

/// A line, in the order in which people read it.
#[derive(Default, Serialize)]
struct AuditRow<'a> {
    timestamp: String,
    node: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<String>,
    /// Who gave an order by its own word.
    #[serde(skip_serializing_if = "Option::is_none")]
    says: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    door: Option<&'static str>,
    /// The kind of an order.
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
    /// The number of an order.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

impl<'a> AuditRow<'a> {
    fn of(entry: &'a AuditEntry) -> AuditRow<'a> {
        let who = match &entry.who {
            Who::Node => "node".to_owned(),
            Who::User(user) => format!("user {user}"),
            Who::Nobody => "nobody".to_owned(),
            Who::Anyone => "anyone".to_owned(),
            Who::Others => "others".to_owned(),
        };
        let (who, from, door) = (Some(who), entry.from.as_deref(), Some(entry.door));
        let line = AuditRow { who, from, door, ..AuditRow::at(entry) };
        match &entry.what {
            What::Order(ordered) => line.of_order(ordered),
            What::Refused(refused) => line.of_refusals(refused),
        }
    }

    fn at(entry: &AuditEntry) -> AuditRow<'a> {
        AuditRow { timestamp: dates::utc(entry.at.0), node: entry.node.to_string(), ..AuditRow::default() }
    }

    fn lost(entry: &AuditEntry, count: u64) -> AuditRow<'a> {
        AuditRow { event: "lost", count: Some(count), ..AuditRow::at(entry) }
    }

    fn of_order(self, ordered: &'a Ordered) -> AuditRow<'a> {
        let Ordered { asked, says, number, result } = ordered;
        let (what, kind) = match asked {
            AuditedOrder::Change(order) => (words::asked(order), kind(order)),
            AuditedOrder::Repair(control) => (repair(control), Some("repair".to_owned())),
            AuditedOrder::Unreadable => ("an order that cannot be read".to_owned(), None),
        };
        let (what, says) = (Some(shortened(&what)), says.as_deref());
        let line = AuditRow { event: "order", order: kind, what, says, id: *number, ..self };
        match result {
            OrderResult::Done => AuditRow { outcome: Some("done"), ..line },
            OrderResult::Unknown => AuditRow { outcome: Some("unknown"), ..line },
            OrderResult::Given => AuditRow { outcome: Some("given"), ..line },
            OrderResult::Answered(answer) => match &**answer {
                OrderOutcome::Done { generation, .. } => {
                    AuditRow { outcome: Some("done"), generation: Some(generation.0), ..line }
                }
                OrderOutcome::Refused { refusal, .. } => {
                    let why = Some(shortened(&words::why(refusal)));
                    AuditRow { outcome: Some("refused"), code: Some(refusal.code()), why, ..line }
                }
            },
            OrderResult::Failed { code, detail } => {
                let is_unknown = code.outcome() == Outcome::Indeterminate;
                let outcome = Some(if is_unknown { "unknown" } else { "refused" });
                AuditRow {
                    outcome,
                    why: Some(why(*code, detail.as_deref())),
                    code: Some(code.name().to_owned()),
                    ..line
                }
            }
        }
    }

    fn of_refusals(self, refused: &RefusedOrder) -> AuditRow<'a> {
        let RefusedOrder { request, code, detail, count, since } = refused;
        AuditRow {
            event: "refusal",
            what: Some((*request).to_owned()).filter(|what| !what.is_empty()),
            code: Some(code.name().to_owned()),
            why: Some(why(*code, detail.as_deref())),
            count: Some(*count),
            since: (*count > 1).then(|| dates::utc(since.0)),
            ..self
        }
    }
}

/// An order about the repair of one node.
fn repair(control: &AntiEntropyControl) -> String {
    let mut what = match control.order {
        AntiEntropyOrder::Start => "start repair",
        AntiEntropyOrder::Stop => "stop repair",
        AntiEntropyOrder::Scrub => "scrub",
        AntiEntropyOrder::Look => "look at repair",
    }
    .to_owned();
    if let Some(store) = &control.store {
        what += &format!(" of store {store:?}");
    }
    if let Some(partition) = control.partition {
        what += &format!(" of partition {partition}");
    }
    what
}

/// The kind of an order, as its document says it.
fn kind(order: &Order) -> Option<String> {
    let document = serde_json::to_value(order).ok()?;
    Some(document.get("verb")?.as_str()?.to_owned())
}

fn why(code: ErrorCode, detail: Option<&str>) -> String {
    shortened(detail.unwrap_or_else(|| code.description()))
}

fn shortened(sentence: &str) -> String {
    sentence.chars().take(SENTENCE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use model::access::{SecretDigest, UserChange, UserName};
    use model::{Generation, NodeId, WallMillis};
    use serde_json::Value as Json;

    use super::*;

    fn entry(what: What) -> AuditEntry {
        let who = Who::User(UserName::new("root").unwrap());
        let (at, from) = (WallMillis(1_763_754_000_123), Some("10.0.0.7:40112".to_owned()));
        AuditEntry { at, node: NodeId(1), who, from, door: "native", what }
    }

    fn order() -> AuditEntry {
        let (user, secret) = (UserName::new("shop").unwrap(), SecretDigest([0xab; 32]));
        let user = UserChange::Create { user, secret, grants: Default::default(), redis_store: None };
        let done = model::order::Done::UserChanged { user: UserName::new("shop").unwrap() };
        let answer = OrderOutcome::Done { done, plan: None, generation: Generation(12) };
        let result = OrderResult::Answered(Box::new(answer));
        let asked = AuditedOrder::Change(Box::new(Order::User { user }));
        entry(What::Order(Ordered { asked, says: None, number: Some(17), result }))
    }

    #[test]
    fn a_line_says_who_ordered_what_and_what_came_of_it() {
        let line = |entry: &AuditEntry| serde_json::to_string(&AuditRow::of(entry)).unwrap();
        let said = line(&order());
        assert_eq!(
            said,
            r#"{"timestamp":"2025-11-21T19:40:00.123Z","node":"n1","event":"order","who":"user root","from":"10.0.0.7:40112","door":"native","order":"user","what":"create user shop","id":17,"outcome":"done","generation":12}"#
        );
        let store = Some("carts".to_owned());
        let stop = AntiEntropyControl { order: AntiEntropyOrder::Stop, store, partition: None };
        let asked = AuditedOrder::Repair(stop);
        let ordered = Ordered { asked, says: None, number: None, result: OrderResult::Done };
        let said = line(&entry(What::Order(ordered)));
        let end = r#""order":"repair","what":"stop repair of store \"carts\"","outcome":"done"}"#;
        assert!(said.ends_with(end), "{said}");
        let refused = RefusedOrder {
            request: "get",
            code: ErrorCode::Forbidden,
            detail: None,
            count: 400,
            since: WallMillis(1_763_754_000_000),
        };
        let said = line(&AuditEntry { who: Who::Nobody, ..entry(What::Refused(refused)) });
        assert!(said.contains(r#""event":"refusal","who":"nobody""#), "{said}");
        assert!(said.ends_with(r#""count":400,"since":"2025-11-21T19:40:00.000Z"}"#), "{said}");
    }

    #[test]
    fn what_finds_no_room_is_counted_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (queue, told) = sync_channel(2);
        let log = AuditLog { queue, lost: Arc::default() };
        (0..5).for_each(|_| log.write(order()));
        let mut writer = Writer { file: LogFile::new(path.clone()), lost: log.lost.clone(), fails: false };
        drop(log);
        writer.run(&told);
        let text = std::fs::read_to_string(path).unwrap();
        let events: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let events: Vec<_> = events.iter().map(|line| (&line["event"], &line["count"])).collect();
        let (order, lost) = ((&"order".into(), &Json::Null), (&"lost".into(), &3.into()));
        assert_eq!(events, [lost, order, order]);
    }

    #[test]
    fn a_log_is_written_by_its_thread_until_it_is_closed_and_is_not_made_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(Some(&folder.path().join("node-1.log")), folder.path());
        assert_eq!(path, folder.path().join("node-1.audit.jsonl"));
        let log = AuditLog::open(&path).unwrap();
        assert!(!path.exists());
        (0..100).for_each(|_| log.write(order()));
        log.close();
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 100);
    }
}
