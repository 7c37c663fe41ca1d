//! Who this node is, as its data directory remembers it.
//!
//! The identity file says to which cluster and node the directory belongs, and under which incarnation it last
//! stamped writes. A clean stop records how many births were used, and the next start goes on with the same
//! incarnation. Any other start may have forgotten writes (the tail of a log that was not synced), so it takes a
//! new incarnation, durably, before the first write is stamped.
//!
//! ```text
//! tontine-identity 1
//! cluster dev
//! node 2
//! incarnation 1763754000123
//! births 5120            (only after a clean stop)
//! checksum 5f2c...       (XXH3-64 of all lines before)
//! ```

use std::sync::Arc;

use model::NodeId;
use runtime::{Clock, Disk, DiskError};
use thiserror::Error;

/// The file's name below the data directory.
const FILE: &str = "identity";
/// Newest format that this program reads and writes.
const FORMAT: u32 = 1;

/// Why a data directory cannot be this node's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// Another process holds the directory.
    #[error("the data directory is in use by another process; stop it or choose another directory")]
    InUse,
    /// The directory belongs to another node or cluster.
    #[error(
        "the data directory belongs to node {found_node} of cluster {found_cluster:?}, not to node {node} of \
             {cluster:?}; start it under its own id or choose another directory"
    )]
    Foreign {
        /// Node that owns it.
        found_node: NodeId,
        /// Cluster that owns it.
        found_cluster: String,
        /// Node that wanted it.
        node: NodeId,
        /// Cluster that wanted it.
        cluster: String,
    },
    /// Written by a newer version.
    #[error(
        "the data directory has format {found}, this program reads up to {FORMAT}; use the newer program"
    )]
    Newer {
        /// The format found.
        found: u32,
    },
    /// The file is there but cannot be read.
    #[error(
        "the identity file of the data directory is damaged ({reason}); restore it or start with an empty directory"
    )]
    Damaged {
        /// What is wrong with it.
        reason: String,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// An open identity; the directory stays locked while it lives.
pub(crate) struct Identity {
    disk: Arc<dyn Disk>,
    cluster: String,
    node: NodeId,
    incarnation: u64,
    births_used: u64,
    _lock: Box<dyn Send + Sync>,
}

struct Remembered {
    cluster: String,
    node: NodeId,
    incarnation: u64,
    births: Option<u64>,
}

impl Identity {
    /// Locks the directory, checks whose it is, and settles the incarnation durably.
    pub(crate) async fn open(
        disk: Arc<dyn Disk>,
        cluster: &str,
        node: NodeId,
        clock: &dyn Clock,
    ) -> Result<Self, IdentityError> {
        let lock = disk.lock("lock").map_err(|error| match error {
            DiskError::Locked { .. } => IdentityError::InUse,
            other => IdentityError::Disk(other),
        })?;
        let remembered = read(&*disk)?;
        if let Some(found) = &remembered
            && (found.node != node || found.cluster != cluster)
        {
            return Err(IdentityError::Foreign {
                found_node: found.node,
                found_cluster: found.cluster.clone(),
                node,
                cluster: cluster.to_owned(),
            });
        }
        let (incarnation, births_used) = match remembered {
            Some(Remembered { incarnation, births: Some(births), .. }) => (incarnation, births),
            Some(Remembered { incarnation, births: None, .. }) => (clock.wall().0.max(incarnation + 1), 0),
            None => (clock.wall().0.max(1), 0),
        };
        let identity =
            Identity { disk, cluster: cluster.to_owned(), node, incarnation, births_used, _lock: lock };
        identity.write(None).await?;
        Ok(identity)
    }

    /// The incarnation to stamp under.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Births that the incarnation had used when it was last stopped cleanly.
    pub(crate) fn births_used(&self) -> u64 {
        self.births_used
    }

    /// Remembers a clean stop: call it after all stores are closed.
    pub(crate) async fn close(self, births_used: u64) -> Result<(), IdentityError> {
        self.write(Some(births_used)).await
    }

    async fn write(&self, births: Option<u64>) -> Result<(), IdentityError> {
        let mut text = format!(
            "tontine-identity {FORMAT}\ncluster {}\nnode {}\nincarnation {}\n",
            self.cluster, self.node.0, self.incarnation
        );
        if let Some(births) = births {
            text.push_str(&format!("births {births}\n"));
        }
        text.push_str(&format!("checksum {:016x}\n", model::Token::of(text.as_bytes()).0));
        let temporary = format!("{FILE}.new");
        match self.disk.remove(&temporary) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let file = self.disk.create(&temporary)?;
        file.append(text.as_bytes())?;
        file.sync().await?;
        self.disk.rename(&temporary, FILE)?;
        self.disk.sync_directory("").await?;
        Ok(())
    }
}

fn read(disk: &dyn Disk) -> Result<Option<Remembered>, IdentityError> {
    let file = match disk.open(FILE) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = vec![0; file.length().min(64 * 1024) as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    let text = String::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    parse(&text).map(Some)
}

fn parse(text: &str) -> Result<Remembered, IdentityError> {
    let first = text.lines().next().unwrap_or_default();
    let format = first
        .strip_prefix("tontine-identity ")
        .and_then(|format| format.parse::<u32>().ok())
        .ok_or_else(|| damaged("its first line is not that of an identity file"))?;
    if format > FORMAT {
        return Err(IdentityError::Newer { found: format });
    }
    let body_end = text.rfind("checksum ").ok_or_else(|| damaged("its checksum is missing"))?;
    let checksum = format!("{:016x}", model::Token::of(&text.as_bytes()[..body_end]).0);
    if text[body_end..].trim_end() != format!("checksum {checksum}") {
        return Err(damaged("its checksum does not hold"));
    }
    let field = |name: &str| {
        text[..body_end]
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .map(str::to_owned)
    };
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    Ok(Remembered {
        cluster: field("cluster").ok_or_else(|| damaged("it names no cluster"))?,
        node: number("node")
            .and_then(|id| u32::try_from(id).ok())
            .map(NodeId)
            .ok_or_else(|| damaged("it names no node"))?,
        incarnation: number("incarnation").ok_or_else(|| damaged("it names no incarnation"))?,
        births: number("births"),
    })
}

fn damaged(reason: &str) -> IdentityError {
    IdentityError::Damaged { reason: reason.to_owned() }
}
