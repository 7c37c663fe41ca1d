//! What was written, what was promised, and whether an engine kept it.

use std::collections::BTreeMap;

use model::{PartitionId, Token};
use storage::{Commit, StorageEngine};

use crate::setup::{WHOLE, counted, scan_all};

/// What a life ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process ended; the machine went on.
    Kill,
    /// The power was cut.
    PowerCut,
}

/// Keys and values of each partition.
type Contents = BTreeMap<u32, Vec<(Vec<u8>, Vec<u8>)>>;

#[derive(Default)]
pub(crate) struct Ledger {
    keys: BTreeMap<(u32, Vec<u8>), History>,
    /// Where in the log of this life states came, for promises that reach up to a position.
    logged: Vec<Logged>,
    /// The power was cut since the last look at what is left.
    power_was_cut: bool,
}

/// A state of a key, and the position of the log behind it.
struct Logged {
    position: Commit,
    key: (u32, Vec<u8>),
    state: usize,
}

/// All states that a key had, in order.
struct History {
    values: Vec<Option<Vec<u8>>>,
    /// The state that was the newest when a write was acknowledged, and when it was said to survive a power cut.
    acknowledged: usize,
    survives: usize,
}

impl Ledger {
    pub(crate) fn wrote(&mut self, partition: u32, key: &[u8], value: Option<Vec<u8>>) {
        let history = self.keys.entry((partition, key.to_vec())).or_insert_with(|| History {
            values: vec![None],
            acknowledged: 0,
            survives: 0,
        });
        history.values.push(value);
    }

    /// The last write of this key was refused: nothing was changed.
    pub(crate) fn refused(&mut self, partition: u32, key: &[u8]) {
        let history = self.keys.get_mut(&(partition, key.to_vec())).expect("it was written before");
        history.values.pop();
        assert!(history.values.len() > history.acknowledged, "what was acknowledged is not refused");
    }

    /// So was the last drop of this partition.
    pub(crate) fn refused_drop(&mut self, partition: u32) {
        let keys: Vec<Vec<u8>> =
            self.keys.keys().filter(|(of, _)| *of == partition).map(|(_, key)| key.clone()).collect();
        keys.iter().for_each(|key| self.refused(partition, key));
    }

    pub(crate) fn dropped(&mut self, partition: u32) {
        for ((of, _), history) in &mut self.keys {
            if *of == partition {
                history.values.push(None);
            }
        }
    }

    /// Everything written so far was acknowledged.
    pub(crate) fn acknowledge(&mut self) {
        self.keys.values_mut().for_each(|history| history.acknowledged = history.values.len() - 1);
    }

    /// Everything written so far survives a power cut.
    pub(crate) fn promise(&mut self) {
        self.acknowledge();
        self.keys.values_mut().for_each(|history| history.survives = history.values.len() - 1);
    }

    /// The state that a key has now; `None` when nothing of it was ever written.
    pub(crate) fn newest(&self, partition: u32, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.keys.get(&(partition, key.to_vec())).and_then(|history| history.values.last())
    }

    /// The newest state of a key lies in the log before `position`.
    pub(crate) fn logged(&mut self, partition: u32, key: &[u8], position: Commit) {
        let key = (partition, key.to_vec());
        let state = self.keys[&key].values.len() - 1;
        self.logged.push(Logged { position, key, state });
    }

    /// The drop of a partition lies in the log before `position`.
    pub(crate) fn logged_drop(&mut self, partition: u32, position: Commit) {
        let keys: Vec<Vec<u8>> =
            self.keys.keys().filter(|(of, _)| *of == partition).map(|(_, key)| key.clone()).collect();
        keys.iter().for_each(|key| self.logged(partition, key, position));
    }

    /// Everything that lies before `position` was acknowledged; `survives`: a power cut, too.
    pub(crate) fn told(&mut self, position: Commit, survives: bool) {
        for logged in self.logged.iter().filter(|logged| logged.position <= position) {
            let history = self.keys.get_mut(&logged.key).expect("what was logged was written");
            history.acknowledged = history.acknowledged.max(logged.state);
            if survives {
                history.survives = history.survives.max(logged.state);
            }
        }
        if survives {
            self.logged.retain(|logged| logged.position > position);
        }
    }

    /// A life has ended.
    pub(crate) fn ended(&mut self, end: End) {
        self.logged.clear();
        self.power_was_cut |= end == End::PowerCut;
    }

    /// Checks what a new life found. What it found, and no other state, is what may be there from now on: after a power
    /// cut it is on the platter; after the end of a process it is promised as soon as this life promises anything.
    pub(crate) fn settle(&mut self, engine: &dyn StorageEngine) -> Result<(), String> {
        let end = if self.power_was_cut { End::PowerCut } else { End::Kill };
        self.check(engine, end)?;
        for ((partition, key), history) in &mut self.keys {
            let found = engine.get(PartitionId(*partition), Token::of(key), key);
            let found = found.map_err(|error| error.to_string())?.map(|record| record.to_vec());
            let state = history.values.iter().rposition(|value| *value == found).expect("it was checked");
            history.values.truncate(state + 1);
            history.acknowledged = state;
            if self.power_was_cut {
                history.values.drain(..state);
                (history.acknowledged, history.survives) = (0, 0);
            }
        }
        self.power_was_cut = false;
        let keys: Vec<(u32, Vec<u8>)> = self.keys.keys().cloned().collect();
        keys.iter().for_each(|(partition, key)| self.logged(*partition, key, Commit(0)));
        Ok(())
    }

    /// Every key has a state that it may have after such an end, and nothing else is there.
    pub(crate) fn check(&self, engine: &dyn StorageEngine, end: End) -> Result<(), String> {
        let mut expected = Contents::new();
        for ((partition, key), history) in &self.keys {
            let name = String::from_utf8_lossy(key);
            let found = engine
                .get(PartitionId(*partition), Token::of(key), key)
                .map_err(|error| format!("get {name} of {partition}: {error}"))?
                .map(|record| record.to_vec());
            let from = match end {
                End::Kill => history.acknowledged,
                End::PowerCut => history.survives,
            };
            if !history.values[from..].contains(&found) {
                let known = if history.values.contains(&found) { "is lost" } else { "is invented" };
                return Err(format!("{name} of {partition}: a state {known}: found {:?}", text(&found)));
            }
            if let Some(value) = found {
                expected.entry(*partition).or_default().push((key.clone(), value));
            }
        }
        self.check_scans(engine, &expected)
    }

    fn check_scans(&self, engine: &dyn StorageEngine, expected: &Contents) -> Result<(), String> {
        let wanted: Vec<(PartitionId, u64)> =
            expected.iter().map(|(id, records)| (PartitionId(*id), records.len() as u64)).collect();
        if counted(engine) != wanted {
            return Err(format!("partitions {:?}, expected {wanted:?}", counted(engine)));
        }
        for (partition, records) in expected {
            let scanned = scan_all(engine, *partition, WHOLE).map_err(|error| error.to_string())?;
            let mut scanned: Vec<(Vec<u8>, Vec<u8>)> =
                scanned.into_iter().map(|(key, record)| (key.to_vec(), record.to_vec())).collect();
            scanned.sort();
            if scanned != *records {
                return Err(format!("a scan of {partition} differs from its gets"));
            }
        }
        Ok(())
    }
}

fn text(value: &Option<Vec<u8>>) -> Option<String> {
    value.as_ref().map(|value| String::from_utf8_lossy(value).trim_end_matches('.').to_owned())
}
