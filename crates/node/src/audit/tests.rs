//! The audit: floods of refusals are folded, orders are told whatever becomes of their callers.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use model::{Cluster, Node, Ring, Zone};
use runtime::Proof;

use super::*;
use crate::doors::native::Answers;
use crate::view::View;

/// A clock that is set.
#[derive(Default)]
struct Dial(AtomicU64);

impl Clock for Dial {
    fn now(&self) -> Moment {
        Moment::default().after(Duration::from_secs(self.0.load(Ordering::Relaxed)))
    }

    fn wall(&self) -> WallMillis {
        WallMillis(1000 * self.0.load(Ordering::Relaxed))
    }

    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<AuditEntry>>);

impl Outlet for Kept {
    fn write(&self, entry: AuditEntry) {
        self.0.lock().push(entry);
    }
}

struct Stage {
    clock: Arc<Dial>,
    kept: Arc<Kept>,
    audit: Arc<Audit>,
    view: CurrentView,
}

impl Stage {
    fn new() -> Stage {
        let node = Node::new(NodeId(1), Zone("a".to_owned()), "h1:1", None);
        let ring = Ring::equal_slices_listing(4, &[(node.id, node.zone.clone())], 1);
        let cluster = Cluster::new("shop", vec![node], ring, Vec::new());
        let view = CurrentView::new(View::new(Arc::new(cluster), Vec::new()));
        let (clock, kept) = (Arc::<Dial>::default(), Arc::<Kept>::default());
        let audit = Audit::new(NodeId(1), clock.clone(), Some(kept.clone()));
        Stage { clock, kept, audit, view }
    }

    fn refuse(&self, from: &str, code: ErrorCode, detail: &str) {
        let caller = Caller::new(Proof::None);
        let asker = Asker { caller: &caller, from };
        self.audit.at("redis").refused(asker, &self.view, "get", &Failure::new(code, detail));
    }

    /// Goes on to this second, and tells what is due.
    fn at(&self, second: u64) -> &Stage {
        self.clock.0.store(second, Ordering::Relaxed);
        self.audit.tell(false);
        self
    }

    /// What was written since: the address, how many, and since when.
    fn told(&self) -> Vec<(String, u64, u64)> {
        let entries = std::mem::take(&mut *self.kept.0.lock());
        let told = |AuditEntry { from, what, .. }| match what {
            What::Refused(RefusedOrder { count, since, .. }) => {
                (from.unwrap_or_default(), count, since.0 / 1000)
            }
            What::Order(order) => panic!("{order:?}"),
        };
        entries.into_iter().map(told).collect()
    }
}

fn told(all: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    all.iter().map(|&(from, count, since)| (from.to_owned(), count, since)).collect()
}

#[test]
fn a_flood_of_refusals_writes_few_lines_and_loses_none() {
    let stage = Stage::new();
    let flood = |times: usize| {
        // Each connection has another port.
        (0..times).for_each(|port| {
            stage.refuse(&format!("10.0.0.7:{port}"), ErrorCode::Unauthenticated, "none");
        });
    };
    flood(1000);
    assert_eq!(stage.told(), told(&[("10.0.0.7", 1, 0)]), "the first is written at once");
    assert_eq!(stage.at(9).told(), []);
    assert_eq!(stage.at(10).told(), told(&[("10.0.0.7", 999, 0)]));
    flood(5);
    assert_eq!(stage.at(29).told(), [], "the pause doubles while it goes on");
    assert_eq!(stage.at(30).told(), told(&[("10.0.0.7", 5, 10)]));
    flood(1);
    stage.audit.tell(true);
    assert_eq!(stage.told(), told(&[("10.0.0.7", 1, 30)]), "the node stops");
    assert_eq!(stage.at(1000).told(), [], "it is quiet, and forgotten");
    flood(1);
    assert_eq!(stage.told(), told(&[("10.0.0.7", 1, 1000)]), "at once again");
    stage.refuse("[::1]:9", ErrorCode::Forbidden, "user shop has not the right operate");
    stage.refuse("[::1]:9", ErrorCode::DiskFull, "no matter of who asks");
    assert_eq!(stage.told(), told(&[("::1", 1, 1000)]));
}

#[test]
fn addresses_beyond_the_limit_are_reported_as_others() {
    let stage = Stage::new();
    for host in 0..1000 {
        stage.refuse(&format!("10.1.{}.{}:1", host / 256, host % 256), ErrorCode::Forbidden, "why");
    }
    let first = stage.told();
    assert_eq!(first.len(), FOLDED_MAX + 1);
    assert!(first.iter().all(|(_, count, _)| *count == 1));
    assert_eq!(stage.at(10).told(), told(&[("", 1000 - 1 - FOLDED_MAX as u64, 0)]));
}

#[test]
fn text_that_a_stranger_made_up_is_not_repeated() {
    let stage = Stage::new();
    stage.refuse("10.0.0.7:1", ErrorCode::Unauthenticated, "tontine_secret");
    stage.refuse("10.0.0.7:1", ErrorCode::Forbidden, &"x".repeat(10_000));
    let entries = std::mem::take(&mut *stage.kept.0.lock());
    let details: Vec<_> = entries
        .iter()
        .map(|entry| match &entry.what {
            What::Refused(refused) => refused.detail.as_ref().map(|detail| detail.len()),
            What::Order(_) => None,
        })
        .collect();
    assert_eq!(details, [None, Some(DETAIL_CHARS_MAX)]);
}

#[tokio::test]
async fn an_order_is_recorded_with_its_author_and_its_outcome() {
    let stage = Stage::new();
    let order = Order::Admit { node: NodeId(4) };
    let json = bytes::Bytes::from(serde_json::to_vec(&order).unwrap());
    let give = |json: &bytes::Bytes| {
        Request::from(wire::messages::OrderGive {
            json: json.clone(),
            by: "ann at h1".to_owned(),
            wait_ms: 0,
        })
    };
    let answers: [(Answers, Option<u64>, OrderResult); 2] = [
        (
            Arc::new(|_| {
                let json = bytes::Bytes::from_static(b"null");
                let told = wire::messages::OrderTold { number: 17, json, cluster: None };
                Box::pin(async { Ok(told.into()) })
            }),
            Some(17),
            OrderResult::Given,
        ),
        (
            Arc::new(|_| Box::pin(async { Err(Failure::new(ErrorCode::NoHeadmaster, "none")) })),
            None,
            OrderResult::Failed { code: ErrorCode::NoHeadmaster, detail: None },
        ),
    ];
    for (orders, number, result) in answers {
        let caller = Caller::new(Proof::Node);
        let asker = Asker { caller: &caller, from: "10.0.0.7:5" };
        let answer = stage.audit.at("native").order(asker, &stage.view, give(&json), &*orders);
        // Its answer is the caller's, whatever it is.
        let _ = answer.await;
        let entry = stage.kept.0.lock().pop().unwrap();
        let says = Some("ann at h1".to_owned());
        let ordered = Ordered { asked: AuditedOrder::Change(Box::new(order.clone())), says, number, result };
        let (at, from) = (WallMillis(0), Some("10.0.0.7:5".to_owned()));
        let expected = AuditEntry {
            at,
            node: NodeId(1),
            who: Who::Node,
            from,
            door: "native",
            what: What::Order(ordered),
        };
        assert_eq!(entry, expected);
    }
}

/// What was written of orders since.
fn ordered(stage: &Stage) -> Vec<Ordered> {
    let entries = std::mem::take(&mut *stage.kept.0.lock());
    let ordered = |AuditEntry { what, .. }| match what {
        What::Order(ordered) => ordered,
        What::Refused(refused) => panic!("{refused:?}"),
    };
    entries.into_iter().map(ordered).collect()
}

#[test]
fn an_order_is_recorded_even_if_nobody_waits_for_its_answer() {
    let stage = Stage::new();
    let caller = Caller::new(Proof::Node);
    let json = bytes::Bytes::from(serde_json::to_vec(&Order::Admit { node: NodeId(4) }).unwrap());
    for polls in 0..2 {
        let give = wire::messages::OrderGive { json: json.clone(), by: String::new(), wait_ms: 1000 };
        let asker = Asker { caller: &caller, from: "10.0.0.7:5" };
        let orders = |_| std::future::pending();
        let mut answer = stage.audit.at("http").order(asker, &stage.view, give.into(), orders);
        (0..polls).for_each(|_| assert!(answer.as_mut().now_or_never().is_none()));
        assert_eq!(ordered(&stage), [], "it may still be answered");
        drop(answer);
        let asked = AuditedOrder::Change(Box::new(Order::Admit { node: NodeId(4) }));
        let expected = Ordered { asked, says: None, number: None, result: OrderResult::Unknown };
        assert_eq!(ordered(&stage), [expected]);
    }
}

#[test]
fn a_request_that_changes_nothing_is_not_recorded_as_an_order() {
    let stage = Stage::new();
    let caller = Caller::new(Proof::Node);
    let asker = Asker { caller: &caller, from: "10.0.0.7:5" };
    let look = AntiEntropyControl { order: AntiEntropyOrder::Look, store: None, partition: None };
    let orders = |_| std::future::ready(Err(Failure::new(ErrorCode::ShuttingDown, "")));
    let answer = stage.audit.at("native").order(asker, &stage.view, look.into(), orders);
    assert!(answer.now_or_never().unwrap().is_err());
    assert_eq!(ordered(&stage), []);
}
