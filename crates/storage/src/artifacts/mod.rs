//! Artifacts: what read-only stores serve. They are built once, never changed, and read where they are mapped.
//!
//! It is no [`StorageEngine`](crate::StorageEngine): an artifact has no versions, tombstones or hints, and nothing of
//! it is merged or repaired in place.
//!
//! ```text
//! records ─▶ runs (sorted, in memory or on disk) ─▶ merged ─▶ cut along the ring ─▶ chunks ─▶ manifest
//!                                                                                      │
//!                                          key ─▶ directory ─▶ chunk ─▶ fence or slot ─▶ page or record
//! ```
//!
//! `docs/reference/artifact.md` describes each byte, `docs/design/artifacts.md` why it is so.
//!
//! **Architecture Invariant:** a get answers a value that was built, *absent*, or an error; whatever happens to a
//! file, never a value that was not built, nor *absent* for a key that is there.

mod artifact;
mod build;
mod child;
mod chunk;
mod chunk_writer;
mod coding;
mod cut;
mod delta;
mod error;
mod fetch;
mod format;
mod lanes;
mod lineage;
mod manifest;
mod merge;
mod output;
mod page;
mod proof;
mod ranges;
mod record;
mod sort;
mod stream;
mod table;
mod verify;

pub use artifact::{Artifact, MANIFEST_PATH, WalkCursor, WalkLimit, WalkPage, chunk_path};
pub use build::{
    BuildError, BuildOptions, BuildStep, ChunkMaker, Duplicates, PAGES_RECORD_BYTES_MAX, Settled, build,
    make_chunks, publish, settle, steps,
};
pub use child::{
    Changed, ChildError, ChildMaker, DELETE, DELTA_PART_MAX, RecordsGiven, build_child, child_manifest, copy,
    put, steps_within,
};
pub use chunk_writer::{ChunkWriter, DATA_BYTES_MAX, Finished, WriteError};
pub use coding::{Compression, DICTIONARY_BYTES_MAX, Sealer, train};
pub use cut::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Cut, Cutter};
pub use delta::FinishedDelta;
pub use error::{OpenError, ReadError};
pub use fetch::{Fetch, FetchError, SourceChunk, VerifiedFile};
pub use format::{BLOCK_BYTES, Digest, FORMAT, FileEntry, Layout, Slice};
pub use lineage::{DeltaEntry, FORMAT_WITH_PARENT, Lineage};
pub use manifest::{CHUNKS_MAX, ChunkEntry, Manifest, ManifestError, TokenHash};
pub use merge::{Merge, MergeError, MergeInputs, merge};
pub use proof::{prove, prove_delta};
pub use ranges::{Range, RangeBytes, ranges};
pub use sort::{BuildRecord, Merged, Place, Records, Run};
pub use verify::Verify;
