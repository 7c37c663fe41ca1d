//! Invariant 2, as far as hints go: some time after all faults have ended, no node holds a hint for another.

use model::NodeId;

use super::Violation;

/// Holder, target and number of the hints that are left when they had time to reach their targets.
pub fn check(hints: &[(NodeId, NodeId, u64)]) -> Vec<Violation> {
    let left = |&(holder, target, count): &(NodeId, NodeId, u64)| Violation {
        invariant: 2,
        about: None,
        detail: format!("{holder} still holds {count} hints for {target}, long after the last fault"),
    };
    hints.iter().map(left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_that_is_left_is_a_broken_promise() {
        assert_eq!(check(&[]), []);
        let violations = check(&[(NodeId(1), NodeId(2), 3)]);
        assert_eq!(violations.len(), 1);
        assert!(
            violations[0].invariant == 2 && violations[0].detail.contains("n1 still holds 3 hints for n2")
        );
    }
}
