//! The node's collection epoch: on its disk, in its memory, and before each merge.
//!
//! ```text
//! tontine-epoch 1
//! epoch 12
//! generation 3           (the cluster document of the epoch's round)
//! floor 11559...         (no write is stamped with a timestamp up to this)
//! checksum 5f2c...       (XXH3-64 of all lines before)
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use model::{Epoch, Generation, StoreName, Timestamp, VersionSet};
use parking_lot::{RwLock, RwLockReadGuard};
use protocol::collection::{Heard, Participant, Remembered, RoundRefusal};
use runtime::panics::{whole, whole_through};
use runtime::{Disk, DiskError};

/// The file below the data directory.
const FILE: &str = "epoch";
const HEAD: &str = "tontine-epoch 1\n";

/// What this node follows.
pub struct Epochs {
    disk: Arc<dyn Disk>,
    /// Shared while contents are admitted and stored, exclusive for all that changes it.
    participant: RwLock<Participant>,
    /// What the disk remembers. Whoever holds it writes.
    written: tokio::sync::Mutex<Remembered>,
}

/// Leave to store contents: while it is held, no epoch is adopted and no guard begins.
pub struct Admitted<'a>(RwLockReadGuard<'a, Participant>);

impl Admitted<'_> {
    /// The contents as they may be stored: merged with the tombstones of a round that is under way for this key.
    pub fn clean<'s>(&self, store: &StoreName, key: &Bytes, set: &'s VersionSet) -> Cow<'s, VersionSet> {
        let mut set = Cow::Borrowed(set);
        if !self.0.guards_nothing() {
            for tombstones in self.0.guarded(store, key) {
                set.to_mut().merge(tombstones);
            }
        }
        set
    }
}

impl Epochs {
    /// Reads what the disk remembers.
    ///
    /// # Errors
    /// When the disk refuses. A file that cannot be read counts as none, so the node is taken for rolled back if there
    /// ever was a round.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self, DiskError> {
        let remembered = read(&*disk)?.unwrap_or_default();
        let participant = RwLock::new(Participant::new(remembered));
        Ok(Epochs { disk, participant, written: tokio::sync::Mutex::new(remembered) })
    }

    /// What it follows.
    pub fn known(&self) -> Remembered {
        self.participant.read().known()
    }

    /// What contents that are read from now on are tagged with. Take it before reading.
    pub fn tag(&self) -> Epoch {
        self.participant.read().epoch()
    }

    /// Asks for leave to store contents with this tag, which came in a message formed under `generation`. A greater
    /// epoch is adopted, if this node may: `standing` is the generation of the cluster document that it follows, when
    /// that names it.
    ///
    /// # Errors
    /// `StaleEpoch`, `StaleGeneration`.
    pub fn guard_contents(
        &self,
        tag: Epoch,
        generation: Generation,
        standing: impl Fn() -> Option<Generation>,
    ) -> Result<Admitted<'_>, RoundRefusal> {
        if self.participant.read().is_news(tag) {
            self.hear(tag, generation, standing());
        }
        let participant = self.participant.read();
        participant.accepts_contents(tag, generation)?;
        Ok(Admitted(participant))
    }

    /// Takes over an epoch that somebody named in answer to a message formed under `generation`, if this node may.
    pub fn hear(&self, epoch: Epoch, generation: Generation, standing: Option<Generation>) {
        // What has no epoch itself is tagged with the greatest number there is.
        if epoch != Epoch(u64::MAX) {
            self.change(|participant| participant.hear(Heard { epoch, generation }, standing));
        }
    }

    /// The disk is what it should be: it was compared with the coordination service.
    pub fn compare(&self, epoch: Epoch) {
        self.change(|participant| participant.compare(epoch));
    }

    /// Whether the disk was compared with the service.
    pub fn is_compared(&self) -> bool {
        self.participant.read().is_compared()
    }

    /// Compares the disk with the completed epoch, after the service was away at the start; false when the disk
    /// remembers less.
    pub fn compare_with(&self, completed: Epoch) -> bool {
        let sound = self.known().epoch >= completed;
        if sound {
            self.compare(completed);
        }
        sound
    }

    /// Changes the node's part in rounds.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Participant) -> T) -> T {
        whole(|| change(&mut self.participant.write()))
    }

    /// Makes `remembered` durable, and takes back nothing of what is remembered already: of two rounds that fence at
    /// once, the one that is written later may have been judged before the other was.
    pub async fn remember(&self, remembered: Remembered) -> Result<(), DiskError> {
        whole_through(self.write(remembered)).await
    }

    async fn write(&self, remembered: Remembered) -> Result<(), DiskError> {
        let mut written = self.written.lock().await;
        let remembered = Remembered {
            epoch: written.epoch.max(remembered.epoch),
            generation: written.generation.max(remembered.generation),
            floor: written.floor.max(remembered.floor),
        };
        let temporary = format!("{FILE}.new");
        match self.disk.remove(&temporary) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = self.disk.create(&temporary)?;
        file.append(encode(remembered).as_bytes())?;
        file.sync().await?;
        self.disk.rename(&temporary, FILE)?;
        self.disk.sync_directory("").await?;
        *written = remembered;
        Ok(())
    }
}

fn encode(Remembered { epoch, generation, floor }: Remembered) -> String {
    let text = format!("{HEAD}epoch {epoch}\ngeneration {}\nfloor {}\n", generation.0, floor.0);
    let check = model::Token::of(text.as_bytes()).0;
    format!("{text}checksum {check:016x}\n")
}

fn decode(text: &str) -> Option<Remembered> {
    let (body, check) = text.split_at_checked(text.rfind("checksum ")?)?;
    if check.trim_end() != format!("checksum {:016x}", model::Token::of(body.as_bytes()).0) {
        return None;
    }
    let mut lines = body.strip_prefix(HEAD)?.lines();
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    Some(Remembered {
        epoch: Epoch(field("epoch")?),
        generation: Generation(field("generation")?),
        floor: Timestamp(field("floor")?),
    })
}

fn read(disk: &dyn Disk) -> Result<Option<Remembered>, DiskError> {
    let file = match disk.open(FILE) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.length().min(4096) as usize];
    let read = file.read_at(0, &mut bytes)?;
    let decoded = std::str::from_utf8(&bytes[..read]).ok().and_then(decode);
    if decoded.is_none() {
        tracing::error!("the file that remembers the collection epoch is damaged");
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;

    fn remembered() -> Remembered {
        Remembered { epoch: Epoch(12), generation: Generation(3), floor: Timestamp(77) }
    }

    #[test]
    fn remembered_epochs_survive_a_power_cut_and_damage_is_noticed() {
        let disk = SimulatedDisk::new(1);
        let epochs = Epochs::open(Arc::new(disk.clone())).unwrap();
        assert_eq!(epochs.known(), Remembered::default());
        futures_util::FutureExt::now_or_never(epochs.remember(remembered())).unwrap().unwrap();
        drop(epochs);
        disk.crash(7);
        let again = Epochs::open(Arc::new(disk.clone())).unwrap();
        assert_eq!(again.known(), remembered());
        let mut bytes = encode(remembered()).into_bytes();
        bytes[20] ^= 1;
        assert_eq!(decode(std::str::from_utf8(&bytes).unwrap()), None);
    }

    #[test]
    fn remembered_epochs_never_go_back() {
        let disk = SimulatedDisk::new(1);
        let epochs = Epochs::open(Arc::new(disk.clone())).unwrap();
        let other = Remembered { epoch: Epoch(13), generation: Generation(2), floor: Timestamp(5) };
        for judged in [remembered(), other] {
            futures_util::FutureExt::now_or_never(epochs.remember(judged)).unwrap().unwrap();
        }
        let both = Remembered { epoch: Epoch(13), ..remembered() };
        assert_eq!(Epochs::open(Arc::new(disk)).unwrap().known(), both);
    }

    #[test]
    fn contents_from_before_the_epoch_are_refused_and_later_ones_raise_it() {
        let epochs = Epochs::open(Arc::new(SimulatedDisk::new(1))).unwrap();
        epochs.compare(Epoch(5));
        let standing = || Some(Generation(1));
        assert!(matches!(
            epochs.guard_contents(Epoch(4), Generation(1), standing),
            Err(RoundRefusal::StaleEpoch(Epoch(5)))
        ));
        assert!(epochs.guard_contents(Epoch(6), Generation(1), standing).is_ok());
        assert_eq!(epochs.tag(), Epoch(6));
        assert!(epochs.guard_contents(Epoch(9), Generation(2), standing).is_ok(), "taken, but not believed");
        assert_eq!(epochs.tag(), Epoch(6));
    }
}
