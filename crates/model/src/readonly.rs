//! Read-only stores: which artifacts each lists, and which one it serves.
//!
//! ```text
//!   stage ─▶ staging ── swap ─▶ served ── swap, roll back ─▶ kept ── swap, roll back ─▶ served
//!               │ abort, delete                                │ delete, or the next swap
//!               ▼                                              ▼
//!            not listed                                     not listed
//! ```
//!
//! Each verb makes the next state of one store; whether nodes hold what it is about to serve, `protocol::push` decides.
//!
//! **Architecture Invariant:** at most one artifact is served, and a number never comes back.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Unknown;
use crate::limits::{ARTIFACT_SOURCE_BYTES_MAX, ARTIFACTS_MAX};
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

/// The wish that an artifact goes live as soon as it may. A conductor carries it out; commands only watch.
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
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a user asks of a read-only store. Each is one change of the cluster document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Create the store.
    Create {
        /// Its name.
        store: StoreName,
        /// N.
        replicas: u8,
    },
    /// List an artifact, which nodes then fetch.
    Stage {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
        /// Digest of its manifest.
        manifest: ManifestDigest,
        /// Where nodes fetch it.
        source: String,
    },
    /// List an artifact unless it is listed, and serve it by itself when enough replicas of each slice hold it.
    Push {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
        /// Digest of its manifest.
        manifest: ManifestDigest,
        /// Where nodes fetch it.
        source: String,
        /// Replicas of each slice that must hold it; all by default.
        #[serde(default)]
        replicas: Option<u8>,
        /// After so many milliseconds it is aborted unless it is served; never by default.
        #[serde(default)]
        abort_after_ms: Option<u64>,
    },
    /// Serve an artifact, when enough replicas of each slice hold it.
    Swap {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
        /// Replicas of each slice that must hold it; all by default.
        #[serde(default)]
        replicas: Option<u8>,
        /// Refuse it when it was served before: a push that goes on undoes no rollback.
        #[serde(default)]
        first: bool,
    },
    /// Serve the artifact from before the served one, when enough replicas of each slice hold it.
    Rollback {
        /// The store.
        store: StoreName,
        /// Replicas of each slice that must hold it; all by default.
        #[serde(default)]
        replicas: Option<u8>,
    },
    /// Forget an artifact that is not served.
    Delete {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
    },
    /// Forget an artifact that was never served.
    Abort {
        /// Its store.
        store: StoreName,
        /// Its number.
        number: ArtifactNumber,
    },
}

/// Why a verb cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArtifactError {
    /// The store lists no such artifact.
    #[error("store {} lists no artifact {number}", .store.as_str())]
    NotListed {
        /// The store.
        store: StoreName,
        /// As asked for.
        number: ArtifactNumber,
    },
    /// A new artifact has a number that is not greater than all before.
    #[error(
        "the number {number} is not greater than {newest}, the greatest that the store has had; build it with a greater one"
    )]
    NotGreater {
        /// Of the new one.
        number: ArtifactNumber,
        /// The greatest so far.
        newest: ArtifactNumber,
    },
    /// The store lists as many as it may.
    #[error("the store lists {ARTIFACTS_MAX} artifacts, which is the limit; abort or delete one first")]
    TooMany,
    /// The source is empty or too long.
    #[error("a source has 1 to {ARTIFACT_SOURCE_BYTES_MAX} bytes, got {bytes}")]
    Source {
        /// Its length.
        bytes: usize,
    },
    /// It is served already.
    #[error("artifact {number} is served already")]
    Served {
        /// The artifact.
        number: ArtifactNumber,
    },
    /// It was served before: only an order of a user's own brings it back.
    #[error("artifact {number} was served before; to serve it again, run `tontine artifact swap {} {number}`", .store.as_str())]
    WasServed {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
    },
    /// A newer artifact is served, and a push goes forward only.
    #[error("artifact {served} is served, which is newer than {number}; to go back to {number}, run `tontine artifact swap {} {number}`", .store.as_str())]
    Overtaken {
        /// The store.
        store: StoreName,
        /// The artifact.
        number: ArtifactNumber,
        /// The newer one.
        served: ArtifactNumber,
    },
    /// Another artifact has this number.
    #[error(
        "the store lists another artifact {number}, with the manifest {listed}; build this one with a greater number"
    )]
    AnotherManifest {
        /// The number of both.
        number: ArtifactNumber,
        /// The digest of the listed one.
        listed: ManifestDigest,
    },
    /// It was served once, so it is no push that could be aborted.
    #[error("artifact {number} was served, so there is no push to abort; delete it instead")]
    NotStaging {
        /// The artifact.
        number: ArtifactNumber,
    },
    /// Nothing older is kept.
    #[error("store {} keeps no artifact from before the served one", .store.as_str())]
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

    /// The store with one artifact more, which nodes fetch.
    ///
    /// # Errors
    /// When the number is not new, or the store lists as many as it may.
    pub fn stage(
        &self,
        number: ArtifactNumber,
        manifest: ManifestDigest,
        source: &str,
    ) -> Result<ReadOnlyStore, ArtifactError> {
        if number <= self.newest {
            return Err(ArtifactError::NotGreater { number, newest: self.newest });
        }
        if self.artifacts.len() >= ARTIFACTS_MAX {
            return Err(ArtifactError::TooMany);
        }
        if !(1..=ARTIFACT_SOURCE_BYTES_MAX).contains(&source.len()) {
            return Err(ArtifactError::Source { bytes: source.len() });
        }
        let mut next = ReadOnlyStore { newest: number, ..self.clone() };
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

    /// The store with an artifact that is to go live by itself, listed now or before. Unchanged when it is served.
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
        let mut next = match self.artifact(number) {
            None => self.stage(number, manifest, source)?,
            Some(listed) if listed.manifest != manifest => {
                return Err(ArtifactError::AnotherManifest { number, listed: listed.manifest });
            }
            Some(_) => self.clone(),
        };
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
        artifact.push = Some(push.clone());
        Ok(next)
    }

    /// The store serving this artifact. The one served so far is kept, and none but that. Pushes of this one and of older
    /// ones are over: a push goes forward only.
    ///
    /// # Errors
    /// When it is not listed, or served already.
    pub fn swap(&self, number: ArtifactNumber) -> Result<ReadOnlyStore, ArtifactError> {
        if self.listed(number)?.standing == Standing::Served {
            return Err(ArtifactError::Served { number });
        }
        let before = self.served().map(|artifact| artifact.number);
        let mut next = ReadOnlyStore { served_before: before, ..self.clone() };
        next.artifacts.retain(|artifact| artifact.standing != Standing::Kept || artifact.number == number);
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

    /// Which artifact a rollback serves: the one served before, if it is an older one.
    ///
    /// # Errors
    /// When there is none.
    pub fn behind(&self) -> Result<ArtifactNumber, ArtifactError> {
        let served = self.served().map(|artifact| artifact.number);
        let older = self.served_before.filter(|before| Some(*before) < served);
        older.ok_or_else(|| ArtifactError::NothingBehind { store: self.name.clone() })
    }

    /// The store without an artifact that is not served.
    ///
    /// # Errors
    /// When it is not listed, or served.
    pub fn delete(&self, number: ArtifactNumber) -> Result<ReadOnlyStore, ArtifactError> {
        if self.listed(number)?.standing == Standing::Served {
            return Err(ArtifactError::Served { number });
        }
        let mut next = self.clone();
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
            Standing::Served | Standing::Kept => Err(ArtifactError::NotStaging { number }),
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
