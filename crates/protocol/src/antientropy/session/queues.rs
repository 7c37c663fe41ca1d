//! What waits in a session, and how it is cut.

use std::collections::VecDeque;

use super::{STEP_BITS, SessionAction};
use crate::antientropy::merkle::Span;

/// Bits by which a partition is cut whose keys are listed without the help of trees.
const PIECE_BITS: u8 = 8;

/// The parts of a partition whose keys are listed one after the other.
pub(super) fn pieces(root: Span) -> impl Iterator<Item = Span> {
    let finer = PIECE_BITS.min(64 - root.bits);
    (0..1_u64 << finer).map(move |at| Span {
        bits: root.bits + finer,
        prefix: root.prefix.checked_shl(finer.into()).unwrap_or(0) + at,
    })
}

/// What the driver is told: for a descent, how far to go in this step.
pub(super) fn asked(action: &SessionAction) -> SessionAction {
    match action {
        SessionAction::Descend { request, spans } => SessionAction::Descend {
            request: *request,
            spans: spans.iter().map(|&(id, span, bits)| (id, span, step(span, bits))).collect(),
        },
        other => other.clone(),
    }
}

/// The bits of the parts of a span in the next step down to leaves of `leaf_bits`.
pub(super) fn step(span: Span, leaf_bits: u8) -> u8 {
    span.bits.saturating_add(STEP_BITS).min(leaf_bits)
}

pub(super) fn take<T>(queue: &mut VecDeque<T>, most: usize) -> Vec<T> {
    queue.drain(..most.min(queue.len())).collect()
}

pub(super) fn put_back<T>(queue: &mut VecDeque<T>, items: Vec<T>) {
    items.into_iter().rev().for_each(|item| queue.push_front(item));
}

/// Puts back what was not taken care of.
pub(super) fn requeue<T>(queue: &mut VecDeque<T>, mut items: Vec<T>, done: usize) {
    put_back(queue, items.split_off(done.min(items.len())));
}
