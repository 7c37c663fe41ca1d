//! What a node says while it follows an older document counts for no step of a newer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::{Generation, NodeId, PartitionId, Step};
use protocol::report::Parts;
use wire::messages::{Request, Response};

use super::Answer;
use super::rebalance::Three;

/// Lets a node say for how long this holds that it follows an older document than it does, wherever sums are compared.
fn outdated(three: &Three, id: NodeId) -> Arc<AtomicBool> {
    let lags = Arc::new(AtomicBool::new(true));
    let (its, node) = (lags.clone(), Arc::downgrade(three.node(id)));
    three.homes[0].serve(three.node(id), move |request| {
        if !matches!(request, Request::TreeSums(_)) || !its.load(Ordering::Relaxed) {
            return None;
        }
        let (antientropy, request) = (node.upgrade()?.antientropy().clone(), request.clone());
        Some(Answer::Later(Box::pin(async move {
            let mut answer = antientropy.answer(request).await.unwrap_or_else(Response::Failure);
            if let Response::TreeSummed(summed) = &mut answer {
                summed.standing.adopted = Generation(1);
            }
            answer
        })))
    });
    lags
}

/// A replica that still follows the previous document takes writes that the node which enters never sees.
#[test]
fn a_merge_counts_only_with_a_source_that_had_adopted_the_generation() {
    let mut three = Three::new(1);
    let (from, to) = three.ends();
    let lags = outdated(&three, from);
    three.begin();
    // While it copies, the old replicas alone take writes, by either document.
    three.follow();
    assert_eq!(three.document.ring.get(PartitionId(0)).unwrap().step(), Some(Step::Joint));
    three.homes[0].stage.pass(Duration::from_secs(30));
    let told = three.node(to).report(Parts::MOVES).facts().unwrap();
    let entered = &told.entered[&PartitionId(0)];
    assert!(entered.merged.is_empty() && three.next().is_none(), "{entered:?}");
    lags.store(false, Ordering::Relaxed);
    three.follow();
}

/// An heir that follows an older document may be about to give up what it holds.
#[test]
fn nothing_is_dropped_on_the_word_of_an_heir_that_follows_an_older_document() {
    let mut three = Three::new(1);
    let (from, to) = three.ends();
    three.begin();
    while three.document.ring.get(PartitionId(0)).unwrap().step() != Some(Step::ReadingNew) {
        three.follow();
    }
    let lags = outdated(&three, to);
    three.follow();
    three.homes[0].stage.pass(Duration::from_secs(60));
    assert!(three.holds_all(from) && three.holds_all(to));
    lags.store(false, Ordering::Relaxed);
    three.homes[0].stage.until(|| three.holds_nothing(from));
}
