//! What is asked and told about artifacts of read-only stores.

use bytes::Bytes;
use model::{ArtifactNumber, Generation, ManifestDigest, Token};
use smallvec::SmallVec;

use super::request::ScanAfter;
use super::store_ref::StoreRef;
use crate::codec::{fields, tags};

fields! {
    /// Asks one replica for what an artifact holds. Answered from exactly that one, as a replica-get is.
    pub struct ArtifactGet {
        /// Which store.
        pub store: StoreRef,
        /// The generation of the document that the artifact was taken from.
        pub generation: Generation,
        /// Its number.
        pub number: ArtifactNumber,
        /// Digest of its manifest.
        pub manifest: ManifestDigest,
        /// Which keys; answered in this order.
        pub keys: SmallVec<[Bytes; 1]>,
    }
}

fields! {
    /// Asks one replica for a page of what an artifact holds of some tokens, in order of token and key. Answered as a scan is,
    /// from exactly that artifact.
    pub struct ArtifactScan {
        /// Which store.
        pub store: StoreRef,
        /// The generation of the document that the artifact was taken from.
        pub generation: Generation,
        /// Its number.
        pub number: ArtifactNumber,
        /// Digest of its manifest.
        pub manifest: ManifestDigest,
        /// The first token that is wanted.
        pub first: Token,
        /// The last one.
        pub last: Token,
        /// Where the last page ended; `None` starts from the front.
        pub after: Option<ScanAfter>,
        /// Records at most.
        pub records_max: u32,
        /// Bytes of keys and values after which the page ends; it holds at least one record if there is one.
        pub bytes_max: u32,
    }
}

tags! {
    /// A file of an artifact.
    pub enum ArtifactFile: "a file of an artifact" {
        /// What the artifact is, and its chunks.
        Manifest = 0,
        /// Records.
        Chunk = 1,
    }
}

fields! {
    /// Asks for a part of a file that artifacts are made of, by the digest that names it: another node fetches it.
    pub struct ArtifactRead {
        /// Of which store.
        pub store: StoreRef,
        /// Which kind of file.
        pub file: ArtifactFile,
        /// What names it.
        pub digest: [u8; 16],
        /// From which byte on.
        pub offset: u64,
        /// Bytes at most; the node grants at most 1 MiB.
        pub bytes_max: u32,
    }
}

fields! {
    /// A part of a file, which nothing has verified.
    pub struct ArtifactBytes {
        /// How long the whole file is.
        pub file_bytes: u64,
        /// What was asked for; less only at the end of the file, or where the node grants less.
        pub bytes: Bytes,
    }
}
