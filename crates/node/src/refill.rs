//! A node that lost its records gets them back from its peers (`docs/design/healing.md`, *A lost disk*).
//!
//! Which partitions are incomplete is remembered in a file that is written before the node's identity is, and removed
//! when the last one is whole, so no end of the process in between makes an empty partition pass for a whole one.
//!
//! ```text
//! tontine-refill 1
//! default 17              store and partition, one a line
//! checksum 5f2c...        (XXH3-64 of all lines before)
//! ```
//!
//! Must never: call a partition whole that was not merged with enough other replicas.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{Cluster, NodeId, PartitionId, PreferenceList};
use protocol::antientropy::ledger::Required;
use protocol::antientropy::{Goal, Ledger};
use protocol::merkle::Span;
use runtime::{Disk, DiskError};
use serde_json::{Value as Json, json};

use crate::antientropy::{Drive, Repair, living};
use crate::events::Event;
use crate::stores::{LocalStore, bounds};
use crate::view::View;

/// The file below the data directory.
const FILE: &str = "refill";
const HEAD: &str = "tontine-refill 1\n";
/// Pause after a round in which nothing became whole; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What is being refilled.
#[derive(Default)]
pub(crate) struct Refill {
    stores: BTreeMap<String, Ledger>,
    records: u64,
    bytes: u64,
}

impl Refill {
    /// Everything that `node` shall hold and does not.
    pub(crate) fn everything(node: NodeId, cluster: &Cluster) -> Refill {
        Refill::of(node, cluster, |_| true)
    }

    /// What `node` shall hold of the stores that are lost.
    pub(crate) fn of(node: NodeId, cluster: &Cluster, lost: impl Fn(&str) -> bool) -> Refill {
        let stores = cluster.stores.iter().filter(|store| lost(store.name.as_str())).map(|store| {
            let mine = cluster
                .ring
                .partitions()
                .iter()
                .filter(|partition| PreferenceList::of(store, partition).is_replica(node));
            (store.name.to_string(), Ledger::new(mine.map(|partition| partition.id)))
        });
        Refill { stores: stores.collect(), ..Refill::default() }
    }

    /// Both; of a store that is in both what `more` says.
    pub(crate) fn and(mut self, more: Refill) -> Refill {
        self.stores.extend(more.stores);
        self
    }

    /// Partitions that are incomplete, and how many were in the beginning.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let all = self.stores.values().map(Ledger::progress);
        all.fold((0, 0), |sum, progress| (sum.0 + progress.0, sum.1 + progress.1))
    }

    /// Incomplete partitions of a store.
    pub(crate) fn incomplete(&self, store: &str) -> Vec<PartitionId> {
        self.stores.get(store).map_or_else(Vec::new, |ledger| ledger.incomplete().collect())
    }

    /// How it stands; null when nothing is being refilled.
    pub(crate) fn status(&self) -> Json {
        let (left, total) = self.progress();
        if total == 0 {
            return Json::Null;
        }
        let stores: Vec<Json> = self
            .stores
            .iter()
            .map(|(store, ledger)| {
                let (left, total) = ledger.progress();
                json!({ "store": store, "partitions": total, "partitions_left": left })
            })
            .collect();
        json!({
            "partitions": total,
            "partitions_left": left,
            "records": self.records,
            "bytes": self.bytes,
            "stores": stores,
        })
    }

    fn encode(&self) -> String {
        let mut text = HEAD.to_owned();
        for (store, ledger) in &self.stores {
            ledger.incomplete().for_each(|partition| text += &format!("{store} {}\n", partition.0));
        }
        let check = model::Token::of(text.as_bytes()).0;
        text + &format!("checksum {check:016x}\n")
    }

    fn decode(text: &str) -> Option<Refill> {
        let (body, check) = text.split_at_checked(text.rfind("checksum ")?)?;
        if check.trim_end() != format!("checksum {:016x}", model::Token::of(body.as_bytes()).0) {
            return None;
        }
        let mut stores: BTreeMap<String, Vec<PartitionId>> = BTreeMap::new();
        for line in body.strip_prefix(HEAD)?.lines() {
            let (store, partition) = line.split_once(' ')?;
            stores.entry(store.to_owned()).or_default().push(PartitionId(partition.parse().ok()?));
        }
        let stores = stores.into_iter().map(|(store, incomplete)| (store, Ledger::new(incomplete)));
        Some(Refill { stores: stores.collect(), ..Refill::default() })
    }

    /// What an earlier start left to do. A file that cannot be read counts as everything: `None` inside.
    pub(crate) fn load(disk: &dyn Disk) -> Result<Option<Option<Refill>>, DiskError> {
        let file = match disk.open(FILE) {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; usize::try_from(file.length()).unwrap_or(0)];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(Some(String::from_utf8(bytes).ok().as_deref().and_then(Refill::decode)))
    }

    /// Remembers what is left to do; nothing left removes the file.
    pub(crate) async fn save(disk: Arc<dyn Disk>, text: Option<String>) -> Result<(), DiskError> {
        let temporary = format!("{FILE}.new");
        for path in [Some(&*temporary), text.is_none().then_some(FILE)].into_iter().flatten() {
            match disk.remove(path) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(text) = text {
            let file = disk.create(&temporary)?;
            file.append(text.as_bytes())?;
            file.sync().await?;
            disk.rename(&temporary, FILE)?;
        }
        disk.sync_directory("").await
    }

    /// What [`Refill::save`] writes: nothing when all is whole.
    pub(crate) fn text(&self) -> Option<String> {
        (self.progress().0 > 0).then(|| self.encode())
    }
}

/// Refills until nothing is incomplete, as long as the node lives.
pub(crate) async fn run(weak: Weak<Repair>) {
    let mut pause = PAUSE_MIN;
    let Some(repair) = living(&weak) else { return };
    let clock = repair.ports().clock.clone();
    let (left, total) = repair.refill().lock().progress();
    if total == 0 {
        return;
    }
    repair.events().record(Event::RefillStarted { partitions: left as u64 });
    let began = clock.now();
    drop(repair);
    loop {
        let Some(repair) = living(&weak) else { return };
        let before = repair.refill().lock().progress().0;
        round(&repair).await;
        let text = repair.refill().lock().text();
        let done = text.is_none();
        if let Err(error) = Refill::save(repair.disk().clone(), text).await {
            tracing::warn!(%error, "progress of the refilling not remembered");
        }
        let (left, total) = repair.refill().lock().progress();
        if done {
            let (records, bytes) = {
                let refill = repair.refill().lock();
                (refill.records, refill.bytes)
            };
            let seconds = clock.now().since(began).as_secs();
            repair.events().record(Event::RefillEnded { partitions: total as u64, records, bytes, seconds });
            return;
        }
        if left < before {
            repair.events().record(Event::RefillWent { left: left as u64, partitions: total as u64 });
            pause = PAUSE_MIN;
        } else {
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let timer = clock.sleep(pause);
        drop(repair);
        timer.await;
    }
}

/// Asks every peer once for what it can give.
async fn round(repair: &Arc<Repair>) {
    let view = repair.replica().view().get();
    let own = repair.replica().node();
    for store in view.stores() {
        settle_alone(repair, &view, store);
        let name = store.definition().name.to_string();
        let peers: Vec<NodeId> =
            view.cluster().nodes.iter().map(|node| node.id).filter(|&id| id != own).collect();
        for peer in peers {
            let replicas = view.replicated_by(own, store);
            let wanted: Vec<PartitionId> = {
                let refill = repair.refill().lock();
                let Some(ledger) = refill.stores.get(&name) else { continue };
                let gives = |id: &PartitionId| replicas.get(id).is_some_and(|others| others.contains(&peer));
                ledger.wanted_from(peer).filter(gives).collect()
            };
            if wanted.is_empty() || repair.is_closing() {
                continue;
            }
            let spans = bounds(&view.cluster().ring)
                .into_iter()
                .filter(|(id, _)| wanted.binary_search(id).is_ok())
                .map(|(id, tokens)| (id, Span::around(&tokens)));
            let drive = Drive { repair, peer, view: view.clone(), store: store.clone(), goal: Goal::Refill };
            let mut settle = |partition, whole| settle(repair, &view, store, partition, peer, whole);
            let outcome = Box::pin(drive.run(spans.collect(), &mut settle)).await;
            let mut refill = repair.refill().lock();
            refill.records += outcome.pulled as u64;
            refill.bytes += outcome.bytes;
        }
    }
}

/// Partitions that nobody else holds, or that are this node's no more, have nothing to wait for.
fn settle_alone(repair: &Repair, view: &View, store: &LocalStore) {
    let replicas = view.replicated_by(repair.replica().node(), store);
    let mut refill = repair.refill().lock();
    let Some(ledger) = refill.stores.get_mut(store.definition().name.as_str()) else { return };
    for partition in ledger.incomplete().collect::<Vec<_>>() {
        let whole = match replicas.get(&partition) {
            None => true,
            Some(others) => ledger.settle(partition, required(store, others)),
        };
        if whole {
            store.trees().set_incomplete(partition, false);
        }
    }
    ledger.keep(|partition| replicas.contains_key(&partition));
}

fn settle(
    repair: &Repair,
    view: &View,
    store: &LocalStore,
    partition: PartitionId,
    peer: NodeId,
    peer_is_whole: bool,
) {
    let replicas = view.replicas_of(partition, store, repair.replica().node());
    let mut refill = repair.refill().lock();
    let Some(ledger) = refill.stores.get_mut(store.definition().name.as_str()) else { return };
    if ledger.merged(partition, peer, peer_is_whole, required(store, &replicas)) {
        store.trees().set_incomplete(partition, false);
    }
}

fn required<'a>(store: &LocalStore, others: &'a [NodeId]) -> Required<'a> {
    let writes_required = usize::from(store.definition().consistency.writes_required);
    Required { replicas: others.len() + 1, writes_required, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_to_refill_survives_as_text_and_damage_is_noticed() {
        let mut refill = Refill::default();
        refill.stores.insert("carts".to_owned(), Ledger::new([PartitionId(3), PartitionId(17)]));
        refill.stores.insert("users".to_owned(), Ledger::new([PartitionId(3)]));
        let text = refill.text().expect("something is left");
        let again = Refill::decode(&text).expect("it is as it was written");
        assert_eq!(again.text(), Some(text.clone()));
        assert_eq!(again.incomplete("carts"), [PartitionId(3), PartitionId(17)]);
        assert!(Refill::decode(&text.replace("17", "18")).is_none());
        assert!(Refill::decode("").is_none());
        assert_eq!(Refill::default().text(), None);
    }
}
