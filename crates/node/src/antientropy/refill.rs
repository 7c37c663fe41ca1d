//! A node that lost its records gets them back from its peers (`docs/design/healing.md`, *Refilling a lost disk*).
//!
//! Which partitions are incomplete is remembered in a file that is written before the node's identity is, and removed
//! when the last one is whole, so no end of the process in between makes an empty partition pass for a whole one.
//! What became whole is remembered within about a second, so that a process that ends goes on from there.
//!
//! Partitions are brought back a few at a time, each few from all their replicas in turn: so some are whole soon, how
//! many tells how far it is, and no peer gives everything.
//!
//! ```text
//! tontine-refill 2
//! default of 512          store, and how many of its partitions were lost
//! default 17              store and partition that is not whole yet, one a line
//! checksum 5f2c...        (XXH3-64 of all lines before)
//! ```
//!
//! Must never: call a partition whole that was not merged with enough other replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{Cluster, Moment, NodeId, PartitionId, PreferenceList};
use protocol::antientropy::ledger::Required;
use protocol::antientropy::merkle::Span;
use protocol::antientropy::{Goal, Ledger, Outcome};
use runtime::{Disk, DiskError};
use serde_json::{Value as Json, json};

use super::trees::bounds;
use crate::antientropy::{AntiEntropy, Drive, living};
use crate::events::Event;
use crate::stores::LocalStore;
use crate::view::View;

/// The file below the data directory.
const FILE: &str = "refill";
const HEAD: &str = "tontine-refill 2\n";
/// Between a store and the number of its partitions that were lost.
const OF: &str = "of ";
/// Pause after a round in which nothing became whole; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Partitions that are brought back together.
const TOGETHER: usize = 8;
/// How often it is written down what is whole by now.
const REMEMBER_INTERVAL: Duration = Duration::from_secs(1);
/// How often an event tells how far it is.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// What is being refilled.
#[derive(Default)]
pub(crate) struct Refill {
    stores: BTreeMap<String, Ledger>,
    /// What has come since this start, but for the session that runs.
    came: Came,
    /// What has come in the session that runs.
    coming: Came,
    /// When it began after this start, and how many partitions were incomplete then.
    began: Option<(Moment, usize)>,
    ended: Option<Moment>,
}

/// Records that were merged here, and bytes that travelled for them.
#[derive(Clone, Copy, Default)]
struct Came {
    records: u64,
    bytes: u64,
}

impl Came {
    fn of(outcome: &Outcome) -> Came {
        Came { records: outcome.pulled as u64, bytes: outcome.bytes }
    }

    fn and(self, more: Came) -> Came {
        Came { records: self.records + more.records, bytes: self.bytes + more.bytes }
    }
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

    /// How it stands; null when nothing was lost.
    pub(crate) fn status(&self, now: Moment) -> Json {
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
        let Came { records, bytes } = self.came();
        let (began, at_first) = self.began.unwrap_or((now, left));
        let seconds = self.ended.unwrap_or(now).since(began).as_secs_f64();
        let rate = |count: u64| (seconds > 0.0).then(|| (count as f64 / seconds) as u64);
        let done = at_first.saturating_sub(left);
        json!({
            "partitions": total,
            "partitions_left": left,
            "records": records,
            "bytes": bytes,
            "seconds": seconds,
            "records_per_second": rate(records),
            "bytes_per_second": rate(bytes),
            "seconds_left": (done > 0).then(|| (seconds * left as f64 / done as f64).ceil() as u64),
            "stores": stores,
        })
    }

    /// Records and bytes that have come since this start.
    fn came(&self) -> Came {
        self.came.and(self.coming)
    }

    /// Records that have come since this start.
    pub(crate) fn records(&self) -> u64 {
        self.came().records
    }

    /// Bytes that have come since this start.
    pub(crate) fn bytes(&self) -> u64 {
        self.came().bytes
    }

    /// The session that runs has come so far.
    pub(crate) fn show(&mut self, progress: &Outcome) {
        self.coming = Came::of(progress);
    }

    /// The session that ran is over.
    fn took(&mut self, outcome: &Outcome) {
        self.coming = Came::default();
        self.came = self.came.and(Came::of(outcome));
    }

    fn encode(&self) -> String {
        let mut text = HEAD.to_owned();
        for (store, ledger) in &self.stores {
            text += &format!("{store} {OF}{}\n", ledger.progress().1);
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
        let mut stores: BTreeMap<String, (usize, Vec<PartitionId>)> = BTreeMap::new();
        for line in body.strip_prefix(HEAD)?.lines() {
            let (store, what) = line.split_once(' ')?;
            let (total, incomplete) = stores.entry(store.to_owned()).or_default();
            match what.strip_prefix(OF) {
                Some(count) => *total = count.parse().ok()?,
                None => incomplete.push(PartitionId(what.parse().ok()?)),
            }
        }
        let resumed = |(total, incomplete)| Ledger::resumed(incomplete, total);
        let stores = stores.into_iter().map(|(store, read)| (store, resumed(read)));
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
pub(crate) async fn run(weak: Weak<AntiEntropy>) {
    let Some(antientropy) = living(&weak) else { return };
    let clock = antientropy.ports().clock.clone();
    let began = clock.now();
    let (left, total) = {
        let mut refill = antientropy.refill().lock();
        let (left, total) = refill.progress();
        refill.began = Some((began, left));
        (left, total)
    };
    if total == 0 {
        return;
    }
    antientropy.events().record(Event::RefillStarted { partitions: left as u64 });
    drop(antientropy);
    let (mut pause, mut number) = (PAUSE_MIN, 0);
    loop {
        let Some(antientropy) = living(&weak) else { return };
        let before = antientropy.refill().lock().progress().0;
        Round::new(&antientropy, number).run().await;
        number += 1;
        remember(&antientropy).await;
        let left = antientropy.refill().lock().progress().0;
        if left == 0 {
            return end(&antientropy, began);
        }
        pause = if left < before { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        let timer = clock.sleep(pause);
        drop(antientropy);
        timer.await;
    }
}

fn end(antientropy: &AntiEntropy, began: Moment) {
    let now = antientropy.ports().clock.now();
    let (Came { records, bytes }, partitions) = {
        let mut refill = antientropy.refill().lock();
        refill.ended = Some(now);
        (refill.came(), refill.progress().1 as u64)
    };
    let seconds = now.since(began).as_secs();
    antientropy.events().record(Event::RefillEnded { partitions, records, bytes, seconds });
}

/// Writes down what is left to do. First the records of what became whole go to the device, whatever durability their
/// store promises: a partition that a power cut empties must be known as incomplete.
async fn remember(antientropy: &AntiEntropy) {
    let (text, stores) = {
        let refill = antientropy.refill().lock();
        (refill.text(), refill.stores.keys().cloned().collect::<Vec<_>>())
    };
    let view = antientropy.replica().view().get();
    for store in stores.iter().filter_map(|name| view.store(name)) {
        if let Err(error) = store.engine().sync().await {
            tracing::warn!(%error, "progress of the refilling not remembered: records not synced");
            return;
        }
    }
    if let Err(error) = Refill::save(antientropy.disk().clone(), text).await {
        tracing::warn!(%error, "progress of the refilling not remembered");
    }
}

/// Everything that is incomplete, once.
struct Round<'a> {
    antientropy: &'a Arc<AntiEntropy>,
    view: Arc<View>,
    /// Counts rounds: each begins somewhere else, so that what cannot be had keeps nothing from the rest.
    number: usize,
    /// Peers that did not answer; they are asked again in the next round.
    silent: BTreeSet<NodeId>,
    remembered_at: Moment,
    told_at: Moment,
}

impl<'a> Round<'a> {
    fn new(antientropy: &'a Arc<AntiEntropy>, number: usize) -> Self {
        let (view, now) = (antientropy.replica().view().get(), antientropy.ports().clock.now());
        Round { antientropy, view, number, silent: BTreeSet::new(), remembered_at: now, told_at: now }
    }

    async fn run(mut self) {
        let view = self.view.clone();
        for store in view.stores() {
            settle_alone(self.antientropy, &view, store);
            let mut incomplete =
                self.antientropy.refill().lock().incomplete(store.definition().name.as_str());
            if incomplete.is_empty() {
                continue;
            }
            let begin = self.number * TOGETHER % incomplete.len();
            incomplete.rotate_left(begin);
            let spans = bounds(&view.cluster().ring).into_iter();
            let lost = Lost {
                store,
                replicas: view.replicated_by(self.antientropy.replica().node(), store),
                spans: spans.map(|(id, tokens)| (id, Span::around(&tokens))).collect(),
            };
            for (position, partitions) in incomplete.chunks(TOGETHER).enumerate() {
                self.bring_back(&lost, partitions, position).await;
                if self.antientropy.is_closing() {
                    return;
                }
                self.tell().await;
            }
        }
    }

    /// Merges these partitions with what their other replicas hold, one after the other.
    async fn bring_back(&mut self, lost: &Lost<'_>, partitions: &[PartitionId], position: usize) {
        let (antientropy, view, store) = (self.antientropy, self.view.clone(), lost.store);
        let peers = partitions.iter().filter_map(|id| lost.replicas.get(id)).flatten().copied();
        let mut peers: Vec<NodeId> = peers.collect::<BTreeSet<_>>().into_iter().collect();
        // Whoever is first gives the most.
        let first = position % peers.len().max(1);
        peers.rotate_left(first);
        for peer in peers {
            let wanted = lost.wanted(&antientropy.refill().lock(), partitions, peer);
            if wanted.is_empty() || self.silent.contains(&peer) || antientropy.is_closing() {
                continue;
            }
            let drive =
                Drive { antientropy, peer, view: view.clone(), store: store.clone(), goal: Goal::Refill };
            let mut settle = |partition, whole| settle(antientropy, &view, store, partition, peer, whole);
            let outcome = Box::pin(drive.run(wanted, &mut settle)).await;
            antientropy.refill().lock().took(&outcome);
            if !outcome.complete && outcome.failed == 0 {
                self.silent.insert(peer);
            }
        }
    }

    /// Remembers and tells how far it is, now and then.
    async fn tell(&mut self) {
        let now = self.antientropy.ports().clock.now();
        if now.since(self.remembered_at) >= REMEMBER_INTERVAL {
            self.remembered_at = now;
            remember(self.antientropy).await;
        }
        let (left, partitions) = self.antientropy.refill().lock().progress();
        if left > 0 && now.since(self.told_at) >= TELL_INTERVAL {
            self.told_at = now;
            self.antientropy
                .events()
                .record(Event::RefillWent { left: left as u64, partitions: partitions as u64 });
        }
    }
}

/// A store of which something was lost.
struct Lost<'a> {
    store: &'a Arc<LocalStore>,
    replicas: BTreeMap<PartitionId, Vec<NodeId>>,
    spans: BTreeMap<PartitionId, Span>,
}

impl Lost<'_> {
    /// Which of these partitions `peer` still has to give.
    fn wanted(&self, refill: &Refill, among: &[PartitionId], peer: NodeId) -> Vec<(PartitionId, Span)> {
        let Some(ledger) = refill.stores.get(self.store.definition().name.as_str()) else {
            return Vec::new();
        };
        let gives = |id: &PartitionId| self.replicas.get(id).is_some_and(|others| others.contains(&peer));
        let wanted = among.iter().filter(|&&id| ledger.wants(id, peer) && gives(&id));
        wanted.filter_map(|id| Some((*id, *self.spans.get(id)?))).collect()
    }
}

/// Partitions that nobody else holds, or that are this node's no more, have nothing to wait for.
fn settle_alone(antientropy: &AntiEntropy, view: &View, store: &LocalStore) {
    let replicas = view.replicated_by(antientropy.replica().node(), store);
    let mut refill = antientropy.refill().lock();
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
    antientropy: &AntiEntropy,
    view: &View,
    store: &LocalStore,
    partition: PartitionId,
    peer: NodeId,
    peer_is_whole: bool,
) {
    let replicas = view.replicas_of(partition, store, antientropy.replica().node());
    let mut refill = antientropy.refill().lock();
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
        let resumed = Refill::decode(&{
            let mut refill = Refill::default();
            refill.stores.insert("carts".to_owned(), Ledger::resumed([PartitionId(17)], 2));
            refill.text().expect("something is left")
        });
        assert_eq!(resumed.expect("it is as it was written").progress(), (1, 2), "it goes on where it was");
        assert!(Refill::decode(&text.replace("17", "18")).is_none());
        assert!(Refill::decode("").is_none());
        assert_eq!(Refill::default().text(), None);
    }
}
