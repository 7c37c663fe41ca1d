//! What a process sees, what is durable, and what a power cut makes of the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::DiskDice;

/// Torn writes are torn at this granularity, in bytes, unless they are cut at a byte.
const SECTOR_BYTES: usize = 512;

/// One file, whatever its names are.
#[derive(Default)]
pub(super) struct Inode {
    /// What a process reads.
    pub(super) data: Vec<u8>,
    /// What is on the platter for certain.
    durable: Vec<u8>,
    /// Both agree up to here.
    common: usize,
    /// Bytes whose sync failed: gone, though the page cache still shows them.
    lost: Vec<Range<usize>>,
}

impl Inode {
    /// What a process reads and what is on the platter agree up to here.
    pub(super) fn common(&self) -> usize {
        self.common
    }

    /// Makes the first `covered` bytes durable.
    pub(super) fn sync(&mut self, covered: usize) {
        let covered = covered.min(self.data.len());
        if covered < self.common {
            return;
        }
        self.durable.truncate(self.common);
        self.durable.extend_from_slice(&self.data[self.common..covered]);
        for range in &self.lost {
            let range = range.start.min(covered)..range.end.min(covered);
            self.durable[range].fill(0);
        }
        self.common = covered;
    }

    /// A sync of the first `covered` bytes failed: the new ones among them are gone for good.
    pub(super) fn lose(&mut self, covered: usize) {
        if covered > self.common {
            self.lost.push(self.common..covered);
        }
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.data.truncate(length);
        self.common = self.common.min(self.data.len());
        self.lost.retain_mut(|range| {
            range.end = range.end.min(length);
            range.start < range.end
        });
    }

    pub(super) fn flip(&mut self, offset: u64, bit: u8) -> bool {
        let mask = 1 << (bit & 7);
        let Some(byte) = self.data.get_mut(offset as usize) else { return false };
        *byte ^= mask;
        if let Some(byte) = self.durable.get_mut(offset as usize) {
            *byte ^= mask;
        }
        true
    }

    fn crash(&mut self, dice: &mut DiskDice) {
        for range in std::mem::take(&mut self.lost) {
            self.data[range].fill(0);
        }
        let after = match dice.below(5) {
            0 => self.durable.clone(),
            1 => self.data.clone(),
            2 | 3 => {
                let end = self.common + dice.below(self.data.len() - self.common + 1);
                self.data[..end].to_vec()
            }
            _ => self.garbled(dice),
        };
        self.common = after.len();
        self.durable = after.clone();
        self.data = after;
    }

    /// Sector by sector: the new bytes, the old ones, zeros, or noise.
    fn garbled(&self, dice: &mut DiskDice) -> Vec<u8> {
        let end = self.common + dice.below(self.data.len() - self.common + 1);
        let mut bytes = self.data[..end].to_vec();
        let mut start = self.common;
        while start < end {
            let stop = end.min((start / SECTOR_BYTES + 1) * SECTOR_BYTES);
            match dice.below(4) {
                0 => bytes[start..stop].fill(0),
                1 => {
                    for (offset, byte) in bytes[start..stop].iter_mut().enumerate() {
                        *byte = self.durable.get(start + offset).copied().unwrap_or(0);
                    }
                }
                2 => bytes[start..stop].fill_with(|| dice.next() as u8),
                _ => {}
            }
            start = stop;
        }
        bytes
    }
}

/// A change of names that no directory sync has covered.
enum Rename {
    Directory(String),
    Link(String, u64),
    Unlink(String),
    Move {
        from: String,
        to: String,
        inode: u64,
    },
    /// A directory with everything below it.
    MoveAll {
        from: String,
        to: String,
    },
}

impl Rename {
    fn directory(&self) -> &str {
        match self {
            Rename::Directory(path) | Rename::Link(path, _) | Rename::Unlink(path) => parent(path),
            Rename::Move { to, .. } | Rename::MoveAll { to, .. } => parent(to),
        }
    }
}

/// All files and names.
#[derive(Default)]
pub(super) struct Platter {
    inodes: BTreeMap<u64, Inode>,
    inode_next: u64,
    names: BTreeMap<String, u64>,
    directories: BTreeSet<String>,
    durable_names: BTreeMap<String, u64>,
    durable_directories: BTreeSet<String>,
    /// In the order of their numbers.
    pending: Vec<(u64, Rename)>,
    change_next: u64,
    used_bytes: u64,
}

/// The directory that holds `path`; the root is empty.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl Platter {
    pub(super) fn inode(&mut self, inode: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&inode)
    }

    pub(super) fn named(&mut self, path: &str) -> Option<&mut Inode> {
        let inode = self.open(path)?;
        self.inodes.get_mut(&inode)
    }

    pub(super) fn open(&self, path: &str) -> Option<u64> {
        self.names.get(path).copied()
    }

    /// `None` when the name is taken.
    pub(super) fn create(&mut self, path: &str) -> Option<u64> {
        if self.names.contains_key(path) {
            return None;
        }
        self.make_directories(parent(path));
        let inode = self.inode_next;
        self.inode_next += 1;
        self.inodes.insert(inode, Inode::default());
        self.names.insert(path.to_owned(), inode);
        self.change(Rename::Link(path.to_owned(), inode));
        Some(inode)
    }

    fn make_directories(&mut self, directory: &str) {
        if directory.is_empty() || self.directories.contains(directory) {
            return;
        }
        self.make_directories(parent(directory));
        self.directories.insert(directory.to_owned());
        self.change(Rename::Directory(directory.to_owned()));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        if self.directories.contains(from) {
            return self.rename_directory(from, to);
        }
        let Some(inode) = self.names.remove(from) else { return false };
        self.make_directories(parent(to));
        let replaced = self.names.insert(to.to_owned(), inode);
        self.change(Rename::Move { from: from.to_owned(), to: to.to_owned(), inode });
        self.release(replaced);
        true
    }

    /// What was not synced below it stays so, under its new name.
    fn rename_directory(&mut self, from: &str, to: &str) -> bool {
        if self.names.contains_key(to) || !self.list(to).is_empty() {
            return false;
        }
        self.make_directories(parent(to));
        move_all(&mut self.names, &mut self.directories, from, to);
        for (_, change) in &mut self.pending {
            match change {
                Rename::Directory(path) | Rename::Link(path, _) | Rename::Unlink(path) => {
                    move_path(path, from, to)
                }
                Rename::Move { from: source, to: target, .. }
                | Rename::MoveAll { from: source, to: target } => {
                    move_path(source, from, to);
                    move_path(target, from, to);
                }
            }
        }
        self.change(Rename::MoveAll { from: from.to_owned(), to: to.to_owned() });
        true
    }

    pub(super) fn remove(&mut self, path: &str) -> bool {
        let removed = self.names.remove(path);
        if removed.is_some() {
            self.change(Rename::Unlink(path.to_owned()));
        }
        self.release(removed);
        removed.is_some()
    }

    /// A file without a name takes no space any more, though open handles still read it.
    fn release(&mut self, inode: Option<u64>) {
        let bytes = inode.and_then(|inode| self.inodes.get(&inode)).map_or(0, |inode| inode.data.len());
        self.shrank(bytes as u64);
    }

    pub(super) fn list(&self, directory: &str) -> Vec<String> {
        let files = self.names.keys().filter(|path| parent(path) == directory);
        let below = self.directories.iter().filter(|path| parent(path) == directory);
        let names: BTreeSet<String> =
            files.chain(below).map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()).collect();
        names.into_iter().collect()
    }

    pub(super) fn plant(&mut self, path: &str, contents: &[u8]) {
        self.remove(path);
        let inode = self.create(path).expect("the name was just freed");
        let file = self.inodes.get_mut(&inode).expect("just created");
        file.data.extend_from_slice(contents);
        file.sync(contents.len());
        self.grew(contents.len() as u64);
        let mut directory = path;
        while !directory.is_empty() {
            directory = parent(directory);
            self.sync_directory(directory, self.change_next);
        }
    }

    fn change(&mut self, change: Rename) {
        self.pending.push((self.change_next, change));
        self.change_next += 1;
    }

    /// How many changes of names there were.
    pub(super) fn changes(&self) -> u64 {
        self.change_next
    }

    /// Makes those of a directory durable that were among the first `covered` changes of all.
    pub(super) fn sync_directory(&mut self, directory: &str, covered: u64) {
        let is_covered =
            |(number, change): &(u64, Rename)| *number < covered && change.directory() == directory;
        let (covered, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(is_covered);
        self.pending = rest;
        for (_, change) in covered {
            self.apply(change);
        }
    }

    fn apply(&mut self, change: Rename) {
        match change {
            Rename::Directory(path) => {
                self.durable_directories.insert(path);
            }
            Rename::Link(path, inode) => {
                self.durable_names.insert(path, inode);
            }
            Rename::Unlink(path) => {
                self.durable_names.remove(&path);
            }
            Rename::Move { from, to, inode } => {
                if self.durable_names.get(&from) == Some(&inode) {
                    self.durable_names.remove(&from);
                }
                self.durable_names.insert(to, inode);
            }
            Rename::MoveAll { from, to } => {
                move_all(&mut self.durable_names, &mut self.durable_directories, &from, &to);
            }
        }
    }

    /// The files of one directory, as they would be if the power went now and nothing outlived it that no sync has
    /// covered; or, `seen`, as a process sees them.
    pub(super) fn of_directory(&self, directory: &str, seen: bool) -> Platter {
        let mut copy = Platter::default();
        let names = if seen { &self.names } else { &self.durable_names };
        if !seen && !reachable(directory, &self.durable_directories) {
            return copy;
        }
        copy.make_directories(directory);
        let below = format!("{directory}/");
        let files = names.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
        for (path, inode) in files.filter(|(path, _)| parent(path) == directory) {
            let Some(original) = self.inodes.get(inode) else { continue };
            let bytes = if seen { &original.data } else { &original.durable };
            let durable = bytes.clone();
            copy.used_bytes += durable.len() as u64;
            copy.names.insert(path.clone(), copy.inode_next);
            let (data, common) = (durable.clone(), durable.len());
            copy.inodes.insert(copy.inode_next, Inode { data, durable, common, lost: Vec::new() });
            copy.inode_next += 1;
        }
        copy.durable_names = copy.names.clone();
        copy.durable_directories = copy.directories.clone();
        copy.pending.clear();
        copy
    }

    /// Unsynced names survive by the dice, each by itself; unsynced bytes as each file's dice say.
    pub(super) fn crash(&mut self, dice: &mut DiskDice) {
        let mood = dice.below(3);
        for (_, change) in std::mem::take(&mut self.pending) {
            let survives = match mood {
                0 => false,
                1 => true,
                _ => dice.below(2) == 0,
            };
            if survives {
                self.apply(change);
            }
        }
        let kept: BTreeSet<String> = std::mem::take(&mut self.durable_directories);
        self.durable_directories =
            kept.iter().filter(|path| reachable(parent(path), &kept)).cloned().collect();
        let directories = &self.durable_directories;
        self.durable_names.retain(|path, _| reachable(parent(path), directories));
        self.names = self.durable_names.clone();
        self.directories = self.durable_directories.clone();
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
        self.used_bytes = 0;
        for inode in self.inodes.values_mut() {
            inode.crash(dice);
            self.used_bytes += inode.data.len() as u64;
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn grew(&mut self, bytes: u64) {
        self.used_bytes += bytes;
    }

    pub(super) fn shrank(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }
}

/// Gives a path that is `from`, or below it, its new name.
fn move_path(path: &mut String, from: &str, to: &str) {
    if let Some(rest) = path.strip_prefix(from)
        && (rest.is_empty() || rest.starts_with('/'))
    {
        *path = format!("{to}{rest}");
    }
}

/// Moves a directory with everything below it.
fn move_all(names: &mut BTreeMap<String, u64>, directories: &mut BTreeSet<String>, from: &str, to: &str) {
    let moved = |mut path: String| {
        move_path(&mut path, from, to);
        path
    };
    *names = std::mem::take(names).into_iter().map(|(path, inode)| (moved(path), inode)).collect();
    *directories = std::mem::take(directories).into_iter().map(moved).collect();
}

/// True when the directory and all above it exist.
fn reachable(directory: &str, directories: &BTreeSet<String>) -> bool {
    directory.is_empty() || (directories.contains(directory) && reachable(parent(directory), directories))
}
