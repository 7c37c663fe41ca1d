//! Who holds which partition, and how to change that with few moves.
//!
//! Places are filled, and nodes levelled, one place at a time. Mostly one move does it: from a node with too much to one
//! with too little. Where zones or distinctness forbid that, the shortest *chain* of moves is searched: a gives a
//! partition to b, b gives another one to c. This is how flows of least cost are augmented, with nodes as vertices: a
//! place that was given away already may be given on for nothing, and given back it is a copy saved.

use std::collections::{BTreeSet, VecDeque};

use model::{Cluster, Node, NodeId, Zone};

use super::PlanRefusal;

/// Most searches for circles of moves that save a copy.
const SEARCHES_MAX: usize = 2_000;

/// A place that nobody has.
const NOBODY: u32 = u32::MAX;

/// Who holds which partition.
pub(super) struct Assignment {
    nodes: Vec<NodeId>,
    weights: Vec<f64>,
    zones: Vec<usize>,
    zone_count: usize,
    /// By zone: its nodes.
    in_zone_of: Vec<Vec<u32>>,
    /// Places of one partition in each zone, at most.
    zone_places: Vec<usize>,
    replicas: usize,
    /// By partition: its places, in order.
    places: Vec<Vec<u32>>,
    /// By partition: who had a place at first. To put it elsewhere costs a copy.
    originals: Vec<Vec<u32>>,
    /// Partitions of each node, ascending.
    held: Vec<Vec<u32>>,
}

/// Positions of nodes, by id.
pub(super) struct Index(Vec<(NodeId, usize)>);

impl Index {
    /// Of nodes, in their order.
    pub(super) fn of(nodes: impl Iterator<Item = NodeId>) -> Self {
        let mut index: Vec<(NodeId, usize)> = nodes.enumerate().map(|(at, node)| (node, at)).collect();
        index.sort_unstable();
        Index(index)
    }

    /// The position of a node.
    pub(super) fn get(&self, node: NodeId) -> Option<usize> {
        self.0.binary_search_by_key(&node, |&(id, _)| id).ok().map(|at| self.0[at].1)
    }
}

/// A move: a node gives a partition to another.
#[derive(Clone, Copy)]
struct Hop {
    partition: u32,
    from: u32,
}

impl Assignment {
    /// The present assignment, as far as these nodes hold it and no zone has too many of a partition's replicas: what
    /// may not stay is a place that nobody has.
    pub(super) fn of(cluster: &Cluster, nodes: &[&Node], replicas: usize) -> Self {
        let index = Index::of(nodes.iter().map(|node| node.id));
        let mut names: Vec<&Zone> = nodes.iter().map(|node| &node.zone).collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names.dedup();
        let zone = |node: &&Node| names.iter().position(|name| **name == node.zone).expect("all are there");
        let zones: Vec<usize> = nodes.iter().map(zone).collect();
        let sizes: Vec<usize> =
            (0..names.len()).map(|zone| zones.iter().filter(|&&other| other == zone).count()).collect();
        let mut assignment = Assignment {
            nodes: nodes.iter().map(|node| node.id).collect(),
            weights: nodes.iter().map(|node| f64::from(node.weight.get())).collect(),
            zone_count: names.len(),
            zone_places: zone_places(&sizes, replicas),
            in_zone_of: (0..names.len())
                .map(|zone| (0..nodes.len() as u32).filter(|&node| zones[node as usize] == zone).collect())
                .collect(),
            zones,
            replicas,
            places: Vec::with_capacity(cluster.ring.partitions().len()),
            originals: Vec::with_capacity(cluster.ring.partitions().len()),
            held: vec![Vec::new(); nodes.len()],
        };
        for (position, partition) in cluster.ring.partitions().iter().enumerate() {
            let listed = cluster.replicas_in(&partition.nodes).iter();
            let mut places: Vec<u32> =
                listed.map(|&node| index.get(node).map_or(NOBODY, |at| at as u32)).take(replicas).collect();
            places.resize(replicas, NOBODY);
            for &node in places.iter().filter(|&&node| node != NOBODY) {
                assignment.held[node as usize].push(position as u32);
            }
            assignment.originals.push(places.iter().copied().filter(|&node| node != NOBODY).collect());
            assignment.places.push(places);
        }
        assignment
    }

    /// Takes places away where a zone has too many of one partition: at the nodes that are most above their quota.
    pub(super) fn thin_out(&mut self, quotas: &[usize]) {
        for position in 0..self.places.len() {
            for zone in 0..self.zone_count {
                while self.in_zone(position, zone) > self.zone_places[zone] {
                    let places = self.places[position].iter().copied();
                    let there = places.filter(|&node| node != NOBODY && self.zones[node as usize] == zone);
                    let above =
                        |node: u32| self.held[node as usize].len() as i64 - quotas[node as usize] as i64;
                    let fullest = there.max_by_key(|&node| (above(node), node));
                    self.put(position, fullest.expect("too many are some"), NOBODY);
                }
            }
        }
    }

    pub(super) fn partitions(&self) -> usize {
        self.places.len()
    }

    /// All places there are.
    pub(super) fn places(&self) -> usize {
        self.places.len() * self.replicas
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn zone_count(&self) -> usize {
        self.zone_count
    }

    pub(super) fn zone_places(&self, zone: usize) -> usize {
        self.zone_places[zone]
    }

    pub(super) fn members(&self, zone: usize) -> Vec<usize> {
        self.in_zone_of[zone].iter().map(|&node| node as usize).collect()
    }

    pub(super) fn weight(&self, node: usize) -> f64 {
        self.weights[node]
    }

    pub(super) fn load(&self, node: usize) -> usize {
        self.held[node].len()
    }

    /// The replicas of the partition at this position.
    pub(super) fn replicas(&self, position: usize) -> Vec<NodeId> {
        let there = self.places[position].iter().filter(|&&node| node != NOBODY);
        there.map(|&node| self.nodes[node as usize]).collect()
    }

    /// In how many zones the replicas of the partition at this position lie.
    pub(super) fn zones_of(&self, position: usize) -> usize {
        (0..self.zone_count).filter(|&zone| self.in_zone(position, zone) > 0).count()
    }

    /// Puts one node in the place of another.
    pub(super) fn substitute(&mut self, position: usize, from: NodeId, to: NodeId) {
        let index = |id: NodeId| self.nodes.iter().position(|&node| node == id).expect("it is known") as u32;
        let (from, to) = (index(from), index(to));
        self.put(position, from, to);
    }

    /// Gives each place that nobody has to a node below its quota. With `sparing`, one copy is all that a place may cost:
    /// rather than that others move, a node gets more than its quota.
    ///
    /// # Errors
    /// When no chain of moves ends at such a node.
    pub(super) fn fill(&mut self, quotas: &[usize], sparing: bool) -> Result<(), PlanRefusal> {
        let mut spare = Spare::of(self, quotas);
        let empty = |assignment: &Self, position: usize| assignment.places[position].contains(&NOBODY);
        for position in 0..self.places.len() {
            while empty(self, position)
                && let Some(node) = spare.best(self, position, NOBODY)
            {
                self.put(position, NOBODY, node);
                spare.took(self, node);
            }
        }
        for position in 0..self.places.len() {
            while empty(self, position) {
                if sparing && self.fill_by_chain(position, &mut spare, 1) {
                    continue;
                }
                if let Some(node) = self.least_loaded(position).filter(|_| sparing) {
                    self.put(position, NOBODY, node);
                } else if !self.fill_by_chain(position, &mut spare, i32::MAX) {
                    let left = self.nodes.len();
                    return Err(PlanRefusal::TooFewNodes {
                        left,
                        needed: self.replicas,
                        leaving: Vec::new(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The node that holds least for its weight among those that may take the partition.
    fn least_loaded(&self, position: usize) -> Option<u32> {
        let load = |node: u32| (self.held[node as usize].len() + 1) as f64 / self.weights[node as usize];
        let fitting = (0..self.nodes.len() as u32).filter(|&node| self.fits(position, NOBODY, node));
        fitting.min_by(|&a, &b| load(a).total_cmp(&load(b)))
    }

    /// Fills a place by a chain of moves that costs this many copies at most, if there is one.
    fn fill_by_chain(&mut self, position: usize, spare: &mut Spare, most: i32) -> bool {
        let fitting = (0..self.nodes.len() as u32).filter(|&node| self.fits(position, NOBODY, node));
        let starts: Vec<(u32, i32)> = fitting.map(|node| (node, self.price(position as u32, node))).collect();
        let Some((start, end)) = self.chain(&starts, |node| spare.is_spare(node), most) else { return false };
        self.put(position, NOBODY, start);
        spare.took(self, end);
        true
    }

    /// Takes places from nodes above their quota, and gives them to nodes below it, for as long as that is possible.
    pub(super) fn level(&mut self, quotas: &[usize]) {
        let mut spare = Spare::of(self, quotas);
        for node in 0..self.nodes.len() as u32 {
            self.give_back(node, quotas[node as usize], &mut spare);
        }
        for node in 0..self.nodes.len() as u32 {
            self.give_off(node, quotas[node as usize], &mut spare);
        }
        for node in 0..self.nodes.len() as u32 {
            while self.held[node as usize].len() > quotas[node as usize] {
                let found = self.chain(&[(node, 0)], |node| spare.is_spare(node), i32::MAX);
                let Some((_, end)) = found else { break };
                spare.took(self, end);
            }
        }
    }

    /// Gives what is above the quota to nodes that had it at first: nothing is copied for that.
    fn give_back(&mut self, node: u32, quota: usize, spare: &mut Spare) {
        if self.held[node as usize].len() <= quota {
            return;
        }
        for partition in self.held[node as usize].clone() {
            let originals = self.originals[partition as usize].iter().copied();
            let back =
                originals.filter(|&to| spare.is_spare(to) && self.fits(partition as usize, node, to)).min();
            if let Some(to) = back.filter(|_| self.held[node as usize].len() > quota) {
                self.put(partition as usize, node, to);
                spare.took(self, to);
            }
        }
    }

    /// Gives what is above the quota to nodes that may take it as it is.
    fn give_off(&mut self, node: u32, quota: usize, spare: &mut Spare) {
        if self.held[node as usize].len() <= quota {
            return;
        }
        for partition in self.held[node as usize].clone() {
            if self.held[node as usize].len() <= quota || spare.is_empty() {
                return;
            }
            if let Some(to) = spare.best(self, partition as usize, node) {
                self.put(partition as usize, node, to);
                spare.took(self, to);
            }
        }
    }

    /// What a place of the partition at this node costs: a copy, unless it had it at first.
    fn price(&self, partition: u32, node: u32) -> i32 {
        i32::from(!self.originals[partition as usize].contains(&node))
    }

    /// Copies that the places at present cost, and the fewest that would do for as many places at each node.
    fn copies(&self) -> (usize, usize) {
        let mut before = vec![0_usize; self.nodes.len()];
        self.originals.iter().flatten().for_each(|&node| before[node as usize] += 1);
        let more =
            before.iter().zip(&self.held).map(|(before, held)| held.len().saturating_sub(*before)).sum();
        let new = |(position, places): (usize, &Vec<u32>)| {
            places.iter().filter(|node| !self.originals[position].contains(node)).count()
        };
        (self.places.iter().enumerate().map(new).sum(), more)
    }

    /// Looks for places that can be given back to who had them at first, where that leads to fewer copies in all. After
    /// this no circle of moves saves a copy, so the flow is one of least cost; up to a limit, for very large rings.
    pub(super) fn improve(&mut self) {
        let (mut copies, least) = self.copies();
        let mut searches = 0;
        let mut improved = true;
        while std::mem::take(&mut improved) && copies > least {
            for position in 0..self.places.len() {
                for (from, to) in self.returns(position) {
                    if copies == least || searches == SEARCHES_MAX {
                        return;
                    }
                    if !self.places[position].contains(&from) || !self.fits(position, from, to) {
                        continue;
                    }
                    searches += 1;
                    self.put(position, from, to);
                    if self.chain(&[(to, 0)], |node| node == from, 0).is_none() {
                        self.put(position, to, from);
                        continue;
                    }
                    improved = true;
                    copies = self.copies().0;
                }
            }
        }
    }

    /// Places of a partition that cost a copy, each with a node that had one at first and has none now.
    fn returns(&self, position: usize) -> Vec<(u32, u32)> {
        let (places, originals) = (&self.places[position], &self.originals[position]);
        let gone = originals.iter().copied().filter(|node| !places.contains(node));
        let new = |&&node: &&u32| node != NOBODY && !originals.contains(&node);
        gone.flat_map(|to| places.iter().filter(new).map(move |&from| (from, to))).collect()
    }

    /// The cheapest chain of moves from one of these nodes to one where it may end, if it costs no more than this. Makes
    /// it, and tells where it begins and ends.
    fn chain(&mut self, starts: &[(u32, i32)], ends: impl Fn(u32) -> bool, most: i32) -> Option<(u32, u32)> {
        let mut search = Search::of(self, starts, most);
        while let Some(from) = search.next() {
            if ends(from) {
                search.arrived(from);
            } else {
                self.look_round(from, &mut search);
            }
        }
        let end = search.end?.1;
        let mut at = end;
        while let Some(Hop { partition, from }) = search.by[at as usize] {
            self.put(partition as usize, from, at);
            at = from;
        }
        Some((at, end))
    }

    /// Where one node can give what it holds.
    fn look_round(&self, from: u32, search: &mut Search) {
        for &partition in &self.held[from as usize] {
            let gain = self.price(partition, from);
            let used = search.uses(from, partition);
            for zone in 0..self.zone_count {
                // A place that was never given away goes to nodes that were not reached; others may reach them cheaper.
                let nobody = gain == 0 && search.unseen[zone].is_empty();
                if used || nobody || !self.zone_fits(partition as usize, from, zone) {
                    continue;
                }
                let places = &self.places[partition as usize];
                let may: Vec<u32> = match gain {
                    0 => search.unseen[zone].iter().copied().filter(|to| !places.contains(to)).collect(),
                    _ => self.in_zone_of[zone].iter().copied().filter(|to| !places.contains(to)).collect(),
                };
                for to in may {
                    let cost = self.price(partition, to) - gain;
                    search.reach(to, zone, Hop { partition, from }, cost);
                }
            }
            // One that had the place at first takes it back for nothing.
            for &to in self.originals[partition as usize].iter().filter(|_| !used) {
                if self.fits(partition as usize, from, to) {
                    search.reach(to, self.zones[to as usize], Hop { partition, from }, -gain);
                }
            }
        }
    }

    /// Whether the partition may lie at `to` instead of at `from`.
    fn fits(&self, position: usize, from: u32, to: u32) -> bool {
        !self.places[position].contains(&to) && self.zone_fits(position, from, self.zones[to as usize])
    }

    /// Whether one more replica of the partition may lie in the zone when `from` has given up its own.
    fn zone_fits(&self, position: usize, from: u32, zone: usize) -> bool {
        let frees = from != NOBODY && self.zones[from as usize] == zone;
        self.in_zone(position, zone) < self.zone_places[zone] + usize::from(frees)
    }

    fn in_zone(&self, position: usize, zone: usize) -> usize {
        let is_there = |&&node: &&u32| node != NOBODY && self.zones[node as usize] == zone;
        self.places[position].iter().filter(is_there).count()
    }

    fn put(&mut self, position: usize, from: u32, to: u32) {
        let place = self.places[position].iter_mut().find(|place| **place == from);
        *place.expect("it has the place") = to;
        let position = position as u32;
        if from != NOBODY {
            let held = &mut self.held[from as usize];
            held.remove(held.binary_search(&position).expect("it holds what it gives"));
        }
        if to != NOBODY {
            let held = &mut self.held[to as usize];
            held.insert(held.binary_search(&position).expect_err("it takes what it does not hold"), position);
        }
    }
}

/// A search for the cheapest chain.
struct Search {
    /// By node: the copies that a chain to it costs, as far as is known.
    costs: Vec<i32>,
    /// By node: the last move on the way to it.
    by: Vec<Option<Hop>>,
    /// By zone: nodes that were not reached.
    unseen: Vec<BTreeSet<u32>>,
    waiting: VecDeque<u32>,
    is_waiting: Vec<bool>,
    /// The cheapest end that was found, with its cost.
    end: Option<(i32, u32)>,
    /// What a chain may cost.
    most: i32,
}

impl Search {
    fn of(assignment: &Assignment, starts: &[(u32, i32)], most: i32) -> Self {
        let count = assignment.nodes.len();
        let mut search = Search {
            costs: vec![i32::MAX; count],
            by: vec![None; count],
            unseen: assignment.in_zone_of.iter().map(|nodes| nodes.iter().copied().collect()).collect(),
            waiting: VecDeque::new(),
            is_waiting: vec![false; count],
            end: None,
            most,
        };
        for &(node, cost) in starts {
            search.costs[node as usize] = cost;
            search.unseen[assignment.zones[node as usize]].remove(&node);
            search.wait(node);
        }
        search
    }

    fn wait(&mut self, node: u32) {
        if !std::mem::replace(&mut self.is_waiting[node as usize], true) {
            self.waiting.push_back(node);
        }
    }

    /// The next node to look round from, unless that leads nowhere cheaper.
    fn next(&mut self) -> Option<u32> {
        loop {
            let node = self.waiting.pop_front()?;
            self.is_waiting[node as usize] = false;
            if self.end.is_none_or(|(cost, _)| self.costs[node as usize] <= cost) {
                return Some(node);
            }
        }
    }

    fn arrived(&mut self, node: u32) {
        let found = (self.costs[node as usize], node);
        if found.0 > self.most {
            return;
        }
        self.end = Some(self.end.map_or(found, |end| end.min(found)));
    }

    /// Whether the way to this node moves the partition already: two moves of one partition might not fit each other.
    fn uses(&self, node: u32, partition: u32) -> bool {
        let way = std::iter::successors(self.by[node as usize], |hop| self.by[hop.from as usize]);
        way.take(self.by.len()).any(|hop| hop.partition == partition)
    }

    fn reach(&mut self, to: u32, zone: usize, hop: Hop, cost: i32) {
        let cost = self.costs[hop.from as usize] + cost;
        if cost >= self.costs[to as usize] || self.is_on_the_way(hop.from, to) {
            return;
        }
        self.costs[to as usize] = cost;
        self.by[to as usize] = Some(hop);
        self.unseen[zone].remove(&to);
        self.wait(to);
    }

    fn is_on_the_way(&self, node: u32, other: u32) -> bool {
        let way = std::iter::successors(Some(node), |&at| self.by[at as usize].map(|hop| hop.from));
        way.take(self.by.len()).any(|at| at == other)
    }
}

/// Places of one partition in zones of these sizes: as few in each as suffice for all its replicas.
fn zone_places(sizes: &[usize], replicas: usize) -> Vec<usize> {
    let of = |most: usize| sizes.iter().map(move |&size| size.min(most));
    let most = (1..=replicas).find(|&most| of(most).sum::<usize>() >= replicas).unwrap_or(replicas);
    of(most).collect()
}

/// Nodes below their quota, by zone, those that lack most first.
struct Spare {
    quotas: Vec<usize>,
    /// By zone: what nodes lack, and which.
    lacking: Vec<BTreeSet<(usize, std::cmp::Reverse<u32>)>>,
    /// By node: what it lacks.
    lacks: Vec<usize>,
}

impl Spare {
    fn of(assignment: &Assignment, quotas: &[usize]) -> Self {
        let lacks: Vec<usize> = quotas
            .iter()
            .zip(&assignment.held)
            .map(|(&quota, held)| quota.saturating_sub(held.len()))
            .collect();
        let mut lacking = vec![BTreeSet::new(); assignment.zone_count];
        for (node, &lack) in lacks.iter().enumerate().filter(|(_, lack)| **lack > 0) {
            lacking[assignment.zones[node]].insert((lack, std::cmp::Reverse(node as u32)));
        }
        Spare { quotas: quotas.to_vec(), lacking, lacks }
    }

    fn is_empty(&self) -> bool {
        self.lacking.iter().all(BTreeSet::is_empty)
    }

    fn is_spare(&self, node: u32) -> bool {
        self.lacks[node as usize] > 0
    }

    /// The node that lacks most among those that may hold the partition instead of `from`.
    fn best(&self, assignment: &Assignment, position: usize, from: u32) -> Option<u32> {
        let places = &assignment.places[position];
        let fitting = (0..self.lacking.len())
            .filter(|&zone| !self.lacking[zone].is_empty() && assignment.zone_fits(position, from, zone));
        let best = fitting.filter_map(|zone| {
            self.lacking[zone].iter().rev().find(|(_, node)| !places.contains(&node.0)).copied()
        });
        best.max().map(|(_, node)| node.0)
    }

    /// The node has got one more place.
    fn took(&mut self, assignment: &Assignment, node: u32) {
        let (zone, lack) = (assignment.zones[node as usize], &mut self.lacks[node as usize]);
        let entry = std::cmp::Reverse(node);
        self.lacking[zone].remove(&(*lack, entry));
        *lack = self.quotas[node as usize].saturating_sub(assignment.held[node as usize].len());
        if *lack > 0 {
            self.lacking[zone].insert((*lack, entry));
        }
    }
}
