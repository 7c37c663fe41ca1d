//! What is done to the disks of machines behind their nodes' backs.

use bytes::Bytes;
use model::{Moment, NodeId};
use parking_lot::Mutex;

use wire::ErrorCode;

use super::World;
use crate::circumstances::Trouble;
use crate::dice::Dice;
use crate::plant::Plant;

/// Files that say whose a directory is, or up to where deletions were forgotten. If they are damaged, the node does not
/// start and says why (its tests are its own); a run wants all nodes to run in the end.
const SPARED: [&str; 4] = ["identity", "FORMAT", "LOCK", "epoch"];
/// What every value begins with.
const VALUE: &[u8] = b"value-c";

/// From which nodes faults took copies, and when.
#[derive(Default)]
pub(super) struct Strikes(Mutex<Vec<(Moment, NodeId)>>);

impl Strikes {
    /// A node was struck.
    pub(super) fn note(&self, at: Moment, node: NodeId) {
        self.0.lock().push((at, node));
    }

    /// Nodes that were struck at `since` or later.
    pub(super) fn since(&self, since: Moment) -> Vec<NodeId> {
        let strikes = self.0.lock();
        let mut nodes: Vec<NodeId> =
            strikes.iter().filter(|(at, _)| *at >= since).map(|(_, node)| *node).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// When any node was struck, in order.
    pub(super) fn moments(&self) -> Vec<Moment> {
        self.0.lock().iter().map(|(at, _)| *at).collect()
    }
}

impl World {
    /// Puts an empty disk into a machine whose node does not run.
    pub fn wipe(&self, position: usize) {
        self.strike(position);
        self.trouble(Trouble::Lost, position);
        self.witness.lost(self.machines[position].id);
        self.machines[position].disk.wipe();
    }

    /// A copy of a machine's disk.
    pub fn copy(&self, position: usize) -> Vec<(String, Vec<u8>)> {
        self.machines[position].disk.files()
    }

    /// Puts a copy in the place of the disk of a machine whose node does not run.
    pub fn restore(&self, position: usize, copy: &[(String, Vec<u8>)]) {
        self.wipe(position);
        copy.iter().for_each(|(path, contents)| self.machines[position].disk.plant(path, contents));
    }

    /// Flips a bit of the last copy of these bytes on a machine's disk; false when they are not there.
    pub fn flip(&self, position: usize, bytes: &[u8]) -> bool {
        self.strike(position);
        self.trouble(Trouble::Flipped, position);
        let disk = &self.machines[position].disk;
        let found = disk.files().into_iter().rev().find_map(|(path, contents)| {
            let at = contents.windows(bytes.len()).rposition(|window| window == bytes)?;
            Some((path, at as u64))
        });
        found.is_some_and(|(path, at)| disk.flip_bit(&path, at, 3))
    }

    /// Flips a bit that was synced, in any of a machine's files but those that say whose they are; every second time
    /// in the last value that a file holds, so that records that matter are struck as often as dead ones. Where a plant is
    /// about artifacts, only in theirs.
    pub fn flip_somewhere(&self, position: usize, dice: &mut Dice) {
        let machine = &self.machines[position];
        let spared = |path: &str| SPARED.iter().any(|name| path.rsplit('/').next() == Some(name));
        let only = if self.setup.plant == Some(Plant::ArtifactsUnscrubbed) { "artifacts/" } else { "" };
        let mut files = machine.disk.files();
        files.retain_mut(|(path, contents)| {
            contents.truncate(machine.disk.synced_bytes(path) as usize);
            !spared(path) && !contents.is_empty() && path.starts_with(only)
        });
        if files.is_empty() {
            return;
        }
        let in_a_value = dice.chance(500);
        let mut places: Vec<(usize, usize)> = Vec::new();
        for (number, (_, contents)) in files.iter().enumerate() {
            let value = contents.windows(VALUE.len()).rposition(|bytes| bytes == VALUE);
            places.extend(value.filter(|_| in_a_value).map(|at| (number, at + dice.below(8) as usize)));
        }
        let (number, at) = match places.is_empty() {
            false => *dice.pick(&places),
            true => {
                let all = files.iter().map(|(_, contents)| contents.len()).sum::<usize>();
                let mut at = dice.below(all as u64) as usize;
                let Some(number) = files.iter().position(|(_, contents)| {
                    let here = at < contents.len();
                    at -= if here { 0 } else { contents.len() };
                    here
                }) else {
                    return;
                };
                (number, at)
            }
        };
        let path = &files[number].0;
        self.strike(position);
        self.trouble(Trouble::Flipped, position);
        if machine.disk.flip_bit(path, at as u64, dice.below(8) as u8) {
            self.executor.note(17, model::Token::of(path.as_bytes()).0 ^ at as u64);
            self.tell(format!("{}: a bit of {path} flips, in byte {at}", machine.id));
        }
    }

    /// Whether all that is left of a key are copies that their nodes cannot read: a write that nobody acknowledged
    /// reached one node, whose bits flipped. All nodes must be up.
    pub fn only_damaged(&self, store: &'static str, key: &Bytes) -> bool {
        let mut damaged = false;
        for position in 0..self.machines.len() {
            let Some(node) = self.node(position) else { return false };
            let view = node.replica().view().get();
            let Some(local) = view.store(store) else { return false };
            let definition = local.definition();
            let route = view.route(local, key);
            let hints = node.replica().hints();
            let targets = route.preference.replicas();
            let parked = hints.get(targets, &definition.name, definition.resolver, key);
            if !parked.is_ok_and(|parked| parked.is_empty()) {
                return false;
            }
            match local.get(route.place, key) {
                Ok(set) if set.is_empty() => {}
                Ok(_) => return false,
                Err(failure) if failure.code == ErrorCode::Corrupt => damaged = true,
                Err(_) => return false,
            }
        }
        damaged
    }

    /// Says of each node what it noticed of flipped bits since its last start.
    pub fn tell_of_damage(&self) {
        for (position, machine) in self.machines.iter().enumerate() {
            let Some(node) = self.node(position) else { continue };
            let repair = node.antientropy().report();
            let repaired: u64 = repair.trees.iter().map(|trees| trees.repaired_records_total).sum();
            let (found, hints) = (repair.scrub.corrupt_records_total, node.replica().hints().damaged());
            self.tell(format!(
                "{}: the scrub found {found} corrupt records, {repaired} were repaired, {hints} hints forgotten",
                machine.id
            ));
        }
    }
}
