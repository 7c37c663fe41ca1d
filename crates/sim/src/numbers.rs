//! Other numbers of stores, drawn: N, R and W change while everything else happens, and now and then go back.
//!
//! What a run promises stays as it was: as many acknowledge a write as before, and gets meet writes exactly where they
//! did. So the judges need not know which numbers a request used.
//!
//! Must never: change what a run promises, or begin a change while a partition moves.

use model::cluster::Accepted;
use model::{Cluster, Consistency, Generation, Store};
use protocol::rebalance::steps;

use crate::dice::Dice;
use crate::plant::Plant;
use crate::swarm::Setup;

/// Looks in a thousand at which a store begins to change.
const BEGINS: u64 = 400;
/// Looks in a thousand at which a change turns round.
const TURNS: u64 = 100;
/// Whatever the zones are.
const ACCEPTED: Accepted = Accepted { fewer_zones: true, weaker: true };

/// A store begins to change, or goes back; what that does.
pub fn draw(cluster: &Cluster, setup: &Setup, dice: &mut Dice) -> Option<(String, Cluster)> {
    if cluster.changing().is_some() {
        let turned = dice.chance(TURNS).then(|| steps::back_with_numbers(cluster)).flatten();
        return turned.map(|next| ("a change of numbers turns round:".to_owned(), next));
    }
    if !cluster.ring.is_settled() || !dice.chance(BEGINS) {
        return None;
    }
    let store = dice.pick(&cluster.stores);
    let to = other(store, cluster.nodes.len(), setup, dice)?;
    let begun = match setup.plant {
        Some(Plant::NumbersAtOnce) => at_once(cluster, store, to),
        _ => steps::begin_numbers(cluster, store.name.as_str(), to, ACCEPTED).ok()?,
    };
    Some((format!("store {} shall have {to:?}:", store.name), begun))
}

/// The numbers of the run for a store that has others, and others for one that has these: one replica more, or one fewer.
pub fn other(store: &Store, nodes: usize, setup: &Setup, dice: &mut Dice) -> Option<Consistency> {
    let writes_required = store.consistency.writes_required;
    let numbers =
        |replicas: u8, reads_required: u8| Consistency { replicas, reads_required, writes_required };
    if store.consistency.replicas != setup.replicas {
        return Some(numbers(setup.replicas, setup.reads));
    }
    let replicas = if dice.chance(500) { setup.replicas + 1 } else { setup.replicas - 1 };
    if replicas < writes_required || usize::from(replicas) > nodes {
        return None;
    }
    let reads = match store.consistency.quorums_intersect() {
        true => replicas + 1 - writes_required,
        false => setup.reads.min(replicas - writes_required),
    };
    (reads > 0).then(|| numbers(replicas, reads))
}

/// The document as a planted bug would make it: the store has its numbers at once.
fn at_once(cluster: &Cluster, store: &Store, to: Consistency) -> Cluster {
    let since = Generation(cluster.generation.0 + 1);
    let mut next = Cluster { generation: since, ..cluster.clone() };
    let changed = Store { consistency: to, since, ..store.clone() };
    next.stores
        .iter_mut()
        .filter(|known| known.name == store.name)
        .for_each(|known| known.clone_from(&changed));
    next
}

#[cfg(test)]
mod tests {
    use model::StoreName;

    use super::*;

    #[test]
    fn a_change_of_numbers_keeps_the_promises_of_the_run() {
        let (mut raised, mut lowered) = (0, 0);
        for seed in 0..300 {
            let (setup, mut dice) = (Setup::ordinary(seed), Dice::new(seed));
            let (replicas, reads_required, writes_required) = (setup.replicas, setup.reads, setup.writes);
            let before = Consistency { replicas, reads_required, writes_required };
            let store = Store::new(StoreName::new("s").expect("well formed"), before).expect("they fit");
            let Some(to) = other(&store, 6, &setup, &mut dice) else { continue };
            assert_eq!(to.validate(), Ok(()), "{before:?}");
            assert_eq!(to.writes_required, before.writes_required);
            assert_eq!(to.quorums_intersect(), before.quorums_intersect(), "{before:?} {to:?}");
            let changed = Store { consistency: to, ..store };
            assert_eq!(other(&changed, 6, &setup, &mut dice), Some(before), "and back");
            raised += u32::from(to.replicas > before.replicas);
            lowered += u32::from(to.replicas < before.replicas);
        }
        assert!(raised > 50 && lowered > 30, "{raised} {lowered}");
    }
}
