//! Invariant 10: a reader of a read-only store never sees two artifacts mixed in one request, nor an older one after a
//! newer, but for a rollback; and what it sees was built.

use model::Moment;

use super::Violation;

/// One request of one client, and the numbers of the artifacts that its values say they are from. `None` is a key that
/// was absent although every artifact has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Who asked.
    pub client: u32,
    /// When the answer had come.
    pub ended: Moment,
    /// For each key.
    pub numbers: Vec<Option<u64>>,
}

/// A swap that was ordered, from when on it may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// When it was ordered.
    pub ordered: Moment,
    /// What is served from then on.
    pub number: u64,
}

/// Judges the reads of all clients, each client's in their order, by the swaps in their order.
pub fn check(reads: &[Read], swaps: &[Swap]) -> Vec<Violation> {
    let violation = |detail: String| Violation { invariant: 10, detail };
    let mut violations = Vec::new();
    let mut clients: Vec<u32> = reads.iter().map(|read| read.client).collect();
    clients.sort_unstable();
    clients.dedup();
    for client in clients {
        // How many swaps the client has seen at least.
        let mut seen = 0;
        for read in reads.iter().filter(|read| read.client == client) {
            let first = read.numbers.first().copied().flatten();
            if read.numbers.iter().any(|number| *number != first) {
                violations.push(violation(format!(
                    "c{client} saw artifacts mixed in one answer: {:?}",
                    read.numbers
                )));
                continue;
            }
            let Some(number) = first else {
                if seen > 0 {
                    violations
                        .push(violation(format!("c{client} saw nothing after it had seen an artifact")));
                }
                continue;
            };
            let from = seen.max(1);
            let later = swaps.iter().enumerate().skip(from - 1);
            let mut fitting = later.filter(|(_, swap)| swap.number == number && swap.ordered <= read.ended);
            match fitting.next() {
                Some((position, _)) => seen = position + 1,
                None => violations.push(violation(format!(
                    "c{client} saw artifact {number} after swap {seen}, and nobody has served it since"
                ))),
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment { nanos }
    }

    fn read(client: u32, ended: u64, numbers: &[u64]) -> Read {
        let numbers = numbers.iter().map(|&number| (number > 0).then_some(number)).collect();
        Read { client, ended: at(ended), numbers }
    }

    const SWAPS: [(u64, u64); 3] = [(10, 1), (20, 2), (30, 1)];

    fn judged(reads: &[Read]) -> usize {
        check(reads, &SWAPS.map(|(ordered, number)| Swap { ordered: at(ordered), number })).len()
    }

    #[test]
    fn a_client_may_lag_and_may_go_back_with_a_rollback() {
        assert_eq!(judged(&[read(1, 5, &[0, 0]), read(1, 12, &[1, 1]), read(1, 25, &[1, 1])]), 0);
        assert_eq!(judged(&[read(1, 25, &[2, 2]), read(1, 35, &[1, 1]), read(2, 12, &[1])]), 0);
    }

    #[test]
    fn mixed_absent_early_and_older_answers_are_convicted() {
        assert_eq!(judged(&[read(1, 25, &[1, 2])]), 1, "mixed");
        assert_eq!(judged(&[read(1, 25, &[1, 0])]), 1, "absent for what is in every artifact");
        assert_eq!(judged(&[read(1, 25, &[1, 1]), read(1, 26, &[0, 0])]), 1, "nothing after something");
        assert_eq!(judged(&[read(1, 15, &[2, 2])]), 1, "before the swap was ordered");
        assert_eq!(judged(&[read(1, 25, &[2, 2]), read(1, 26, &[1, 1])]), 1, "older before the rollback");
        assert_eq!(judged(&[read(1, 35, &[1, 1]), read(1, 36, &[3, 3])]), 1, "never served");
    }
}
