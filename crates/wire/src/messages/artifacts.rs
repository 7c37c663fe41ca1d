//! What is asked and told about artifacts of read-only stores.

use bytes::Bytes;
use model::{ArtifactNumber, Generation, ManifestDigest};
use smallvec::SmallVec;

use super::store_ref::StoreRef;
use crate::codec::fields;

fields! {
    /// Asks what the node has of each artifact that its cluster document lists.
    pub struct ArtifactsGet {}
}

fields! {
    /// Changes which artifacts a read-only store lists or serves, by a new cluster document that the node publishes, or
    /// creates such a store. Answered with that document.
    pub struct ArtifactsOrder {
        /// `model::readonly::Order` as JSON.
        pub json: Bytes,
    }
}

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
    /// What the node has of each artifact.
    pub struct ArtifactsDocument {
        /// As JSON, for people and tools.
        pub json: Bytes,
    }
}
