//! Which keys are asked for next, and of which node.
//!
//! Keys are drawn from one distribution, whoever holds them. A batch goes to one node, so draws wait beside each other
//! until one node has a batch full. So each node gets its share of batches, and a node that is slow holds up those who wait
//! for it: the cluster is as fast as its most loaded node allows, as with any client that asks for one key after another.

use std::collections::VecDeque;
use std::sync::Arc;

use model::Generation;

use crate::generators::{Rng, Zipfian};

/// Draws that are made at the beginning and used again and again: drawing costs more than asking.
const DRAWS: usize = 1 << 18;
/// Skew of the Zipf distribution, as elsewhere.
const THETA: f64 = 0.99;

/// Where keys are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Routes {
    /// Addresses of nodes: of their Redis ports if batches go to all in turn, and native ones otherwise.
    pub(super) addresses: Vec<String>,
    /// Where each key lies; `None` sends batches to all nodes in turn.
    pub(super) owned: Option<Owned>,
}

/// Which node is asked for which key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Owned {
    /// The document that says so.
    pub(super) generation: Generation,
    /// For each key, by its number, the position of its partition in the ring.
    pub(super) partitions: Vec<u16>,
    /// For each partition the position of its node's address, and since when requests for it are answered.
    pub(super) owners: Vec<(u16, Generation)>,
}

impl Owned {
    /// The position of the address of a key's node, and since when.
    pub(super) fn of(&self, key: u32) -> (u16, Generation) {
        self.owners[usize::from(self.partitions[key as usize])]
    }
}

/// One key to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    /// The number of the key.
    pub(super) key: u32,
    /// Whether it is written.
    pub(super) write: bool,
}

/// The draws of one generator.
#[derive(Debug)]
pub(super) struct Draws {
    routes: Arc<Routes>,
    pool: Vec<Draw>,
    cursor: usize,
    turn: usize,
    waiting: Vec<VecDeque<Draw>>,
}

impl Draws {
    /// Of this many keys, of which a share is written.
    pub(super) fn new(keys: usize, zipf: bool, writes: f64, routes: Arc<Routes>) -> Draws {
        let mut rng = Rng::from_seed(1);
        let last = keys.saturating_sub(1) as u64;
        let mut skewed = Zipfian::new(0, last, THETA);
        let draw = |_| {
            let key = if zipf { skewed.next(&mut rng) } else { rng.below(keys as u64) };
            Draw { key: u32::try_from(key).unwrap_or(0), write: rng.unit() < writes }
        };
        let pool = (0..DRAWS).map(draw).collect();
        let waiting = vec![VecDeque::new(); routes.addresses.len()];
        Draws { routes, pool, cursor: 0, turn: 0, waiting }
    }

    /// Follows other routes. What waited is drawn anew.
    pub(super) fn route(&mut self, routes: Arc<Routes>) {
        self.waiting = vec![VecDeque::new(); routes.addresses.len()];
        self.routes = routes;
    }

    /// Fills the next batch, and says to which address it goes, and by which routes.
    pub(super) fn next(&mut self, depth: usize, batch: &mut Vec<Draw>) -> (usize, Arc<Routes>) {
        batch.clear();
        let routes = Arc::clone(&self.routes);
        let Some(owned) = &routes.owned else {
            self.turn = (self.turn + 1) % routes.addresses.len();
            batch.extend((0..depth).map(|_| self.draw()));
            return (self.turn, routes);
        };
        loop {
            let draw = self.draw();
            let owner = usize::from(owned.of(draw.key).0);
            let waiting = &mut self.waiting[owner];
            waiting.push_back(draw);
            if waiting.len() >= depth {
                batch.extend(waiting.drain(..depth));
                return (owner, routes);
            }
        }
    }

    fn draw(&mut self) -> Draw {
        self.cursor = (self.cursor + 1) % self.pool.len();
        self.pool[self.cursor]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(owners: Option<Vec<u16>>) -> Arc<Routes> {
        let owned = owners.map(|owners| Owned {
            generation: Generation(1),
            partitions: (0..4).collect(),
            owners: owners.into_iter().map(|owner| (owner, Generation(1))).collect(),
        });
        Arc::new(Routes { addresses: vec!["a".to_owned(), "b".to_owned()], owned })
    }

    #[test]
    fn a_node_gets_batches_by_the_share_of_draws_that_are_its_own() {
        // Of four keys, b has one.
        let mut draws = Draws::new(4, false, 0.5, routes(Some(vec![0, 0, 1, 0])));
        let mut batch = Vec::new();
        let mut batches = [0u32; 2];
        for _ in 0..4_000 {
            let to = draws.next(8, &mut batch).0;
            assert!(batch.len() == 8 && batch.iter().all(|draw| (draw.key == 2) == (to == 1)));
            batches[to] += 1;
        }
        assert!((900..1_100).contains(&batches[1]), "{batches:?}");
        draws.route(routes(Some(vec![1; 4])));
        assert_eq!(draws.next(8, &mut batch).0, 1);
    }

    #[test]
    fn without_owners_all_nodes_have_their_turn() {
        let mut draws = Draws::new(100, true, 0.05, routes(None));
        let mut batch = Vec::new();
        let turns: Vec<usize> = (0..4).map(|_| draws.next(3, &mut batch).0).collect();
        assert_eq!(turns, [1, 0, 1, 0]);
        let first = (0..1_000).filter(|_| {
            draws.next(1, &mut batch);
            batch[0].key == 0
        });
        assert!(first.count() > 100, "the first key of a Zipf distribution is hot");
    }
}
