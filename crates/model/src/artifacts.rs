//! Read-only stores: which artifacts each lists, and which one it serves.
//!
//! ```text
//!   stage ─▶ staging ── swap ─▶ served ── swap, roll back ─▶ kept ── swap, roll back ─▶ served
//!               │ abort, delete                                │ delete, or the next swap
//!               ▼                                              ▼
//!            not listed                                     not listed
//! ```
//!
//! The newest that was aborted may be staged again, as the same manifest under the same number.
//!
//! Each verb makes the next state of one store; whether nodes hold what it is about to serve, `protocol::artifacts` decides.
//!
//! **Architecture Invariant:** at most one artifact is served, and a number never stands for two manifests.

mod orders;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::orders::ArtifactOrder;
use crate::Unknown;
use crate::limits::{ARTIFACT_SOURCE_BYTES_MAX, ARTIFACTS_KEPT_MAX, ARTIFACTS_MAX};
use crate::store::{Consistency, Reads, Resolver, Store, StoreName};
use crate::timestamp::WallMillis;

/// Number of an artifact within its store; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArtifactNumber(pub u64);

impl fmt::Display for ArtifactNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Digest of an artifact's manifest, which names all of its bytes. In JSON it is 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ManifestDigest(pub [u8; 16]);

impl fmt::Display for ManifestDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<ManifestDigest> for String {
    fn from(digest: ManifestDigest) -> String {
        digest.to_string()
    }
}

impl TryFrom<String> for ManifestDigest {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let digits =
            text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let number = digits.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        let number = number.ok_or_else(|| format!("{text:?} is no digest: it has 32 of 0-9 a-f"))?;
        Ok(ManifestDigest(number.to_be_bytes()))
    }
}

/// What an artifact is to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Nodes fetch it, or have it; it was never served.
    Staging,
    /// Gets read it.
    Served,
    /// It was served, and can be again at once.
    Kept,
}

/// The wish that an artifact goes live as soon as it may. A headmaster carries it out; commands only watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// Replicas of each slice that must hold it; all by default. The others catch up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    /// When it is aborted unless it is served by then; never by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort_at: Option<WallMillis>,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One artifact of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedArtifact {
    /// Its number.
    pub number: ArtifactNumber,
    /// Digest of its manifest.
    pub manifest: ManifestDigest,
    /// URL of the directory that nodes fetch it from.
    pub source: String,
    /// What it is to its store.
    pub standing: Standing,
    /// Present while it is to go live by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// An artifact that was aborted, and may be pushed again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {
    /// Its number.
    pub number: ArtifactNumber,
    /// Digest of its manifest.
    pub manifest: ManifestDigest,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A store that serves artifacts and takes no writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyStore {
    /// Its name; no other store of either kind has it.
    pub name: StoreName,
    /// N: replicas of each slice.
    pub replicas: u8,
    /// At most [`ARTIFACTS_MAX`], in the order of their numbers.
    pub artifacts: Vec<ListedArtifact>,
    /// The one that was served before the served one, if it is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_before: Option<ArtifactNumber>,
    /// The greatest number that was ever listed; 0 before the first.
    #[serde(default)]
    pub newest: ArtifactNumber,
    /// The newest, if it was never served and is not listed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted: Option<Aborted>,
    /// How many artifacts that were served are kept beside the served one: 1 to [`ARTIFACTS_KEPT_MAX`], 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u8>,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Why a verb cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum ArtifactError {
    /// The store lists no such artifact.
    #[error("store {store} lists no artifact {number}")]
    NotListed {
        /// The store.
        store: StoreName,
        /// As asked for.
        number: ArtifactNumber,
    },
    /// A new artifact has a number that is not greater than all before.
    #[error("the number {number} is not greater than {newest}, the greatest that the store has had")]
    NotGreater {
        /// Of the new one.
        number: ArtifactNumber,
        /// The greatest so far.
        newest: ArtifactNumber,
    },
    /// The store lists as many as it may.
    #[error("store {store} lists {ARTIFACTS_MAX} artifacts, which is the limit")]
    TooMany {
        /// The store.
        store: StoreName,
    },
    /// The source is empty or too long.
    #[error("a source has 1 to {ARTIFACT_SOURCE_BYTES_MAX} bytes, got {bytes}")]
    Source {
        /// Its length.
        bytes: usize,
    },
    /// That many cannot be kept.
    #[error("a store keeps 1 to {ARTIFACTS_KEPT_MAX} artifacts beside the served one, got {kept}")]
    Kept {
        /// As asked for.
        kept: u8,
    },
    /// It is served: it cannot be served again, nor deleted.
    #[error("artifact {number} is served, so it can be neither served again nor deleted")]
    Served {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
    },
    /// It was served before: only an order of a user's own brings it back.
    #[error("artifact {number} was served before")]
    WasServed {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
    },
    /// A newer artifact is served, and a push goes forward only.
    #[error("artifact {served} is served, which is newer than {number}")]
    Overtaken {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
        /// The newer one.
        served: ArtifactNumber,
    },
    /// Another artifact has this number.
    #[error("the store lists another artifact {number}, with the manifest {listed}")]
    AnotherManifest {
        /// The number of both.
        number: ArtifactNumber,
        /// The digest of the listed one.
        listed: ManifestDigest,
    },
    /// It was served once, so it is no push that could be aborted.
    #[error("artifact {number} was served, so there is no push to abort")]
    NotStaging {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
    },
    /// Nothing older is kept.
    #[error("store {store} keeps no artifact from before the served one")]
    NothingBehind {
        /// The store.
        store: StoreName,
    },
}

/// What makes a read-only store of a document unusable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadOnlyError {
    /// It wants no replica.
    #[error("it has no replica of a slice")]
    Replicas,
    /// More artifacts than may be.
    #[error("it lists {count} artifacts, and at most {ARTIFACTS_MAX} may be")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// The numbers are not in order, or above the greatest.
    #[error("the numbers of its artifacts do not grow up to {newest}")]
    Order {
        /// The greatest that the document names.
        newest: ArtifactNumber,
    },
    /// More than one is served.
    #[error("it serves more than one artifact")]
    ServesTwo,
    /// The one served before is not kept.
    #[error("artifact {number} was served before and is not kept")]
    BeforeNotKept {
        /// The artifact.
        number: ArtifactNumber,
    },
    /// It wants to keep none, or more than may be.
    #[error("it keeps {kept} artifacts beside the served one, and 1 to {ARTIFACTS_KEPT_MAX} may be")]
    Kept {
        /// How many.
        kept: u8,
    },
    /// A source is empty or too long.
    #[error("a source has {bytes} bytes")]
    Source {
        /// Its length.
        bytes: usize,
    },
}

impl ReadOnlyStore {
    /// A store without artifacts.
    pub fn new(name: StoreName, replicas: u8) -> Self {
        ReadOnlyStore {
            name,
            replicas,
            artifacts: Vec::new(),
            served_before: None,
            newest: ArtifactNumber::default(),
            aborted: None,
            kept: None,
            unknown: Unknown::new(),
        }
    }

    /// How requests of it are routed and answered: as those of a store whose quorum is one replica, without fallbacks.
    pub fn as_store(&self) -> Store {
        let consistency = Consistency { replicas: self.replicas, reads_required: 1, writes_required: 1 };
        let store = Store::new(self.name.clone(), consistency).expect("its replicas were checked");
        Store { resolver: Resolver::LastWriteWins, reads: Reads::Fast, sloppy: false, ..store }
    }

    /// A listed artifact.
    pub fn artifact(&self, number: ArtifactNumber) -> Option<&ListedArtifact> {
        self.artifacts.iter().find(|artifact| artifact.number == number)
    }

    /// The artifact that gets read, if there is one.
    pub fn served(&self) -> Option<&ListedArtifact> {
        self.artifacts.iter().find(|artifact| artifact.standing == Standing::Served)
    }

    fn listed(&self, number: ArtifactNumber) -> Result<&ListedArtifact, ArtifactError> {
        let not_listed = || ArtifactError::NotListed { store: self.name.clone(), number };
        self.artifact(number).ok_or_else(not_listed)
    }

    /// The store that keeps this many artifacts beside the served one, from the next swap on.
    ///
    /// # Errors
    /// When it is none, or more than may be.
    pub fn keep(&self, kept: u8) -> Result<ReadOnlyStore, ArtifactError> {
        match (1..=ARTIFACTS_KEPT_MAX).contains(&kept) {
            true => Ok(ReadOnlyStore { kept: Some(kept), ..self.clone() }),
            false => Err(ArtifactError::Kept { kept }),
        }
    }

    /// The store with one artifact more, which nodes fetch; or with a listed one that comes from this source from now on.
    ///
    /// # Errors
    /// When another artifact has the number, it is neither new nor that of an aborted push, or the store lists as many as it
    /// may.
    pub fn stage(
        &self,
        number: ArtifactNumber,
        manifest: ManifestDigest,
        source: &str,
    ) -> Result<ReadOnlyStore, ArtifactError> {
        if !(1..=ARTIFACT_SOURCE_BYTES_MAX).contains(&source.len()) {
            return Err(ArtifactError::Source { bytes: source.len() });
        }
        let mut next = self.clone();
        if let Some(artifact) = next.artifacts.iter_mut().find(|artifact| artifact.number == number) {
            if artifact.manifest != manifest {
                return Err(ArtifactError::AnotherManifest { number, listed: artifact.manifest });
            }
            source.clone_into(&mut artifact.source);
            return Ok(next);
        }
        let comes_back = |aborted: &Aborted| (aborted.number, aborted.manifest) == (number, manifest);
        let comes_back = number == self.newest && self.aborted.as_ref().is_some_and(comes_back);
        if number <= self.newest && !comes_back {
            return Err(ArtifactError::NotGreater { number, newest: self.newest });
        }
        if self.artifacts.len() >= ARTIFACTS_MAX {
            return Err(ArtifactError::TooMany { store: self.name.clone() });
        }
        (next.newest, next.aborted) = (number, None);
        next.artifacts.push(ListedArtifact {
            number,
            manifest,
            source: source.to_owned(),
            standing: Standing::Staging,
            push: None,
            unknown: Unknown::new(),
        });
        Ok(next)
    }

    /// The store with an artifact that is to go live by itself, listed now or before, from this source. One that is served
    /// stays so. What a push that goes on asks for stays where `push` does not say otherwise.
    ///
    /// # Errors
    /// As [`ReadOnlyStore::stage`]; when it was served before; when a newer one is served.
    pub fn push(
        &self,
        number: ArtifactNumber,
        manifest: ManifestDigest,
        source: &str,
        push: &Push,
    ) -> Result<ReadOnlyStore, ArtifactError> {
        let mut next = self.stage(number, manifest, source)?;
        let served = self.served().map(|artifact| artifact.number);
        let artifact = next.artifacts.iter_mut().find(|artifact| artifact.number == number);
        let artifact = artifact.expect("it is listed by now");
        let store = self.name.clone();
        match artifact.standing {
            Standing::Served => return Ok(next),
            Standing::Kept => return Err(ArtifactError::WasServed { store, number }),
            Standing::Staging => {}
        }
        if let Some(served) = served.filter(|served| *served > number) {
            return Err(ArtifactError::Overtaken { store, number, served });
        }
        let before = artifact.push.take().unwrap_or_default();
        artifact.push = Some(Push {
            replicas: push.replicas.or(before.replicas),
            abort_at: push.abort_at.or(before.abort_at),
            unknown: before.unknown,
        });
        Ok(next)
    }

    /// The store serving this artifact. The one served so far is kept, and so are the newest others that were, as many as
    /// the store keeps. Pushes of this one and of older ones are over: a push goes forward only.
    ///
    /// # Errors
    /// When it is not listed, or served already.
    pub fn swap(&self, number: ArtifactNumber) -> Result<ReadOnlyStore, ArtifactError> {
        if self.listed(number)?.standing == Standing::Served {
            return Err(ArtifactError::Served { store: self.name.clone(), number });
        }
        let before = self.served().map(|artifact| artifact.number);
        let others: Vec<ArtifactNumber> = self.kept().filter(|kept| *kept != number).collect();
        let stay = usize::from(self.kept.unwrap_or(1)).saturating_sub(usize::from(before.is_some()));
        let go = &others[..others.len().saturating_sub(stay)];
        let mut next = ReadOnlyStore { served_before: before, ..self.clone() };
        next.artifacts.retain(|artifact| !go.contains(&artifact.number));
        for artifact in &mut next.artifacts {
            artifact.push = artifact.push.take().filter(|_| artifact.number > number);
            if artifact.number == number {
                artifact.standing = Standing::Served;
            } else if artifact.standing == Standing::Served {
                artifact.standing = Standing::Kept;
            }
        }
        Ok(next)
    }

    /// Those that were served and can be again, the oldest first.
    fn kept(&self) -> impl Iterator<Item = ArtifactNumber> {
        let kept = self.artifacts.iter().filter(|artifact| artifact.standing == Standing::Kept);
        kept.map(|artifact| artifact.number)
    }

    /// Which artifact a rollback serves: the one served before, if it is an older one; otherwise the newest older one that is
    /// kept.
    ///
    /// # Errors
    /// When there is none.
    pub fn behind(&self) -> Result<ArtifactNumber, ArtifactError> {
        let served = self.served().map(|artifact| artifact.number);
        let is_older = |number: &ArtifactNumber| Some(*number) < served;
        let older = self.served_before.filter(is_older).or_else(|| self.kept().filter(is_older).last());
        older.ok_or_else(|| ArtifactError::NothingBehind { store: self.name.clone() })
    }

    /// The store without an artifact that is not served.
    ///
    /// # Errors
    /// When it is not listed, or served.
    pub fn delete(&self, number: ArtifactNumber) -> Result<ReadOnlyStore, ArtifactError> {
        let listed = self.listed(number)?;
        if listed.standing == Standing::Served {
            return Err(ArtifactError::Served { store: self.name.clone(), number });
        }
        let mut next = self.clone();
        if (listed.standing, number) == (Standing::Staging, self.newest) {
            let (manifest, unknown) = (listed.manifest, Unknown::new());
            next.aborted = Some(Aborted { number, manifest, unknown });
        }
        next.artifacts.retain(|artifact| artifact.number != number);
        next.served_before = next.served_before.filter(|before| *before != number);
        Ok(next)
    }

    /// The store without an artifact that was never served.
    ///
    /// # Errors
    /// When it is not listed, or was served.
    pub fn abort(&self, number: ArtifactNumber) -> Result<ReadOnlyStore, ArtifactError> {
        match self.listed(number)?.standing {
            Standing::Staging => self.delete(number),
            Standing::Served | Standing::Kept => {
                Err(ArtifactError::NotStaging { store: self.name.clone(), number })
            }
        }
    }

    /// Checks what must hold of it in any document.
    ///
    /// # Errors
    /// With the first thing that does not hold.
    pub fn check(&self) -> Result<(), ReadOnlyError> {
        let numbers = || self.artifacts.iter().map(|artifact| artifact.number);
        let standing = |standing| move |artifact: &&ListedArtifact| artifact.standing == standing;
        if self.replicas == 0 {
            return Err(ReadOnlyError::Replicas);
        }
        if let Some(kept) = self.kept.filter(|kept| !(1..=ARTIFACTS_KEPT_MAX).contains(kept)) {
            return Err(ReadOnlyError::Kept { kept });
        }
        if self.artifacts.len() > ARTIFACTS_MAX {
            return Err(ReadOnlyError::TooMany { count: self.artifacts.len() });
        }
        let grow = numbers().zip(numbers().skip(1)).all(|(one, next)| one < next);
        if !grow || numbers().any(|number| number > self.newest || number.0 == 0) {
            return Err(ReadOnlyError::Order { newest: self.newest });
        }
        if self.artifacts.iter().filter(standing(Standing::Served)).count() > 1 {
            return Err(ReadOnlyError::ServesTwo);
        }
        let kept = |number| self.artifact(number).filter(standing(Standing::Kept)).is_some();
        if let Some(number) = self.served_before.filter(|number| !kept(*number)) {
            return Err(ReadOnlyError::BeforeNotKept { number });
        }
        let lengths = self.artifacts.iter().map(|artifact| artifact.source.len());
        match lengths.into_iter().find(|bytes| !(1..=ARTIFACT_SOURCE_BYTES_MAX).contains(bytes)) {
            Some(bytes) => Err(ReadOnlyError::Source { bytes }),
            None => Ok(()),
        }
    }
}
