//! Invariant 10: a reader of a read-only store never sees two artifacts mixed in one request, nor an older one after a
//! newer, but for a rollback; and what it sees was built.
//!
//! Stories know from each value which artifact it is from ([`check`]). The swarm knows what each artifact holds, and a
//! value may be in several of them ([`judge`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use model::Moment;

use super::Violation;

/// One request of one client, and the numbers of the artifacts that its values say they are from. `None` is a key that
/// was absent although every artifact has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumbersRead {
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
pub fn check(reads: &[NumbersRead], swaps: &[Swap]) -> Vec<Violation> {
    let violation = |detail: String| Violation { invariant: 10, about: None, detail };
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

/// What an artifact holds.
pub type Table = BTreeMap<Bytes, Bytes>;

/// One request of one client, and what it was told of each key. Keys that it was refused are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAsked {
    /// Who asked.
    pub client: u32,
    /// When the answer had come.
    pub ended: Moment,
    /// The artifact that was asked for by its number, in place of what is served.
    pub chosen: Option<u64>,
    /// Each key with its value; `None` when it was absent.
    pub answers: Vec<(Bytes, Option<Bytes>)>,
}

impl ReadAsked {
    /// Whether all answers are those of this artifact.
    fn fits(&self, table: &Table) -> bool {
        self.answers.iter().all(|(key, value)| table.get(key) == value.as_ref())
    }

    /// Each key, with the number that its value says, for people.
    fn told(&self) -> String {
        let one = |(key, value): &(Bytes, Option<Bytes>)| {
            let value = value.as_deref().map_or("absent".into(), String::from_utf8_lossy);
            let says = value.split_once(':').map_or(&*value, |(says, _)| says).to_owned();
            format!("{}={says}", String::from_utf8_lossy(key))
        };
        self.answers.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Judges the requests of all clients, each client's in their order, by what was built and by the swaps in the order in
/// which they were published. Before the first of them nothing is served, and every key is absent.
pub fn judge(asked: &[ReadAsked], built: &BTreeMap<u64, Table>, swaps: &[Swap]) -> Vec<Violation> {
    let nothing = Table::new();
    let table = |number: u64| built.get(&number).unwrap_or(&nothing);
    let served: Vec<Swap> =
        [Swap { ordered: Moment::default(), number: 0 }].into_iter().chain(swaps.iter().copied()).collect();
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut violations = Vec::new();
    let mut convict = |detail: String| violations.push(Violation { invariant: 10, about: None, detail });
    for asked in asked {
        let client = asked.client;
        if let Some(number) = asked.chosen {
            if !asked.fits(table(number)) {
                convict(format!(
                    "c{client} asked for artifact {number}, and was told what that does not hold: {}",
                    asked.told()
                ));
            }
            continue;
        }
        let fitting = |from: usize| {
            let later = served.iter().enumerate().skip(from);
            let mut later = later.take_while(|(_, swap)| swap.ordered <= asked.ended);
            later.find(|(_, swap)| asked.fits(table(swap.number))).map(|(place, _)| place)
        };
        let before = seen.get(&client).copied().unwrap_or(0);
        match (fitting(before), fitting(0)) {
            (Some(place), _) => {
                seen.insert(client, place);
            }
            (None, Some(place)) => convict(format!(
                "c{client} saw artifact {} after it had seen artifact {}, and nobody has served it since: {}",
                served[place].number,
                served[before].number,
                asked.told()
            )),
            (None, None) => convict(format!(
                "c{client} was told what no artifact that was served by then holds: {}",
                asked.told()
            )),
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

    fn read(client: u32, ended: u64, numbers: &[u64]) -> NumbersRead {
        let numbers = numbers.iter().map(|&number| (number > 0).then_some(number)).collect();
        NumbersRead { client, ended: at(ended), numbers }
    }

    const SWAPS: [(u64, u64); 3] = [(10, 1), (20, 2), (30, 1)];

    fn judged(reads: &[NumbersRead]) -> usize {
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

    fn table(number: u64) -> Table {
        let entry = |key: &str, says: u64| (Bytes::from(key.to_owned()), Bytes::from(format!("{says}:x")));
        [entry("a", number), entry("b", number), entry("still", 0), entry(&format!("only {number}"), number)]
            .into_iter()
            .collect()
    }

    fn asked(ended: u64, chosen: Option<u64>, answers: &[(&str, Option<u64>)]) -> ReadAsked {
        let answer = |(key, says): &(&str, Option<u64>)| {
            (Bytes::from((*key).to_owned()), says.map(|says| Bytes::from(format!("{says}:x"))))
        };
        ReadAsked { client: 1, ended: at(ended), chosen, answers: answers.iter().map(answer).collect() }
    }

    /// Artifact 1 from 10 on, 2 from 20 on, 1 again from 30 on. 3 is never served.
    fn convicts(requests: &[ReadAsked]) -> usize {
        let built = (1..=3).map(|number| (number, table(number))).collect();
        judge(requests, &built, &SWAPS.map(|(ordered, number)| Swap { ordered: at(ordered), number })).len()
    }

    #[test]
    fn requests_that_fit_what_was_served_pass() {
        let both = |ended, number| asked(ended, None, &[("a", Some(number)), ("b", Some(number))]);
        let absent = asked(5, None, &[("a", None), ("still", None)]);
        assert_eq!(convicts(&[absent, both(12, 1), both(25, 1), both(26, 2), both(35, 1)]), 0);
        assert_eq!(convicts(&[both(25, 2), asked(26, None, &[("still", Some(0)), ("only 1", None)])]), 0);
        assert_eq!(convicts(&[both(25, 2), asked(26, Some(3), &[("a", Some(3)), ("only 2", None)])]), 0);
        assert_eq!(convicts(&[both(25, 2), asked(26, Some(1), &[("a", Some(1))]), both(27, 2)]), 0);
    }

    #[test]
    fn requests_that_fit_nothing_that_was_served_are_convicted() {
        let one = |ended, answers: &[(&str, Option<u64>)]| convicts(&[asked(ended, None, answers)]);
        assert_eq!(one(25, &[("a", Some(1)), ("b", Some(2))]), 1, "mixed");
        assert_eq!(
            one(25, &[("a", Some(2)), ("only 1", Some(1))]),
            1,
            "a key of an older one beside a newer"
        );
        assert_eq!(one(25, &[("a", Some(2)), ("only 2", None)]), 1, "a key that was built is absent");
        assert_eq!(one(15, &[("a", Some(2))]), 1, "before the swap");
        assert_eq!(one(25, &[("a", Some(3))]), 1, "never served");
        assert_eq!(one(25, &[("a", Some(9))]), 1, "never built");
        let older = [asked(25, None, &[("a", Some(2))]), asked(26, None, &[("a", Some(1))])];
        assert_eq!(convicts(&older), 1, "older before the rollback");
        let nothing = [asked(25, None, &[("a", Some(2))]), asked(26, None, &[("a", None)])];
        assert_eq!(convicts(&nothing), 1, "nothing after something");
        assert_eq!(convicts(&[asked(25, Some(1), &[("a", Some(2))])]), 1, "another one than was asked for");
    }
}
