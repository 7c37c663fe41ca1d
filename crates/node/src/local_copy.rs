//! This node's own copy of the cluster document, so that it can start while the coordination service is away (D6).

use std::sync::Arc;

use model::{Cluster, Token};
use runtime::{Disk, DiskError};
use serde::{Deserialize, Serialize};

/// The file below the data directory.
const FILE: &str = "cluster.json";

/// The file's contents.
#[derive(Serialize, Deserialize)]
struct Copy<C> {
    /// XXH3-64 of the document without white space, in hexadecimal digits: a digit that flipped would be a document
    /// as well.
    checksum: String,
    cluster: C,
}

fn checksum(cluster: &Cluster) -> String {
    format!("{:016x}", Token::of(&serde_json::to_vec(cluster).expect("a cluster is plain data")).0)
}

/// Reads a node's own copy of the cluster document from its data directory; `None` when there is none, or none that can be read: it is only a copy.
pub fn read(disk: &dyn Disk) -> Option<Cluster> {
    let file = disk.open(FILE).ok()?;
    let mut bytes = vec![0; usize::try_from(file.length()).ok()?];
    let read = file.read_at(0, &mut bytes).ok()?;
    let copy: Copy<Cluster> = serde_json::from_slice(&bytes[..read]).ok()?;
    let holds = copy.checksum == checksum(&copy.cluster);
    if !holds {
        tracing::warn!("the copy of the cluster document is damaged, and ignored");
    }
    holds.then_some(copy.cluster)
}

/// The newer one of what a coordination service holds and a node's own copy: a service that was restored from a backup,
/// or a server of it that is behind, must not make a node go back to what it gave up.
pub fn newest(served: Option<Cluster>, copy: Option<Cluster>) -> Option<Cluster> {
    let Some(served) = served else { return copy };
    match copy.filter(|copy| copy.is_also(&served) && copy.generation > served.generation) {
        Some(copy) => {
            tracing::warn!(
                served = served.generation.0,
                own = copy.generation.0,
                "the coordination service holds an older cluster document than this node, which follows its own copy"
            );
            Some(copy)
        }
        None => Some(served),
    }
}

/// Whether what a coordination service holds is older than the document by which a node goes, or another one of that
/// number. Then the service was restored from an older copy, and what followed its document would take the place of
/// documents that nodes know. A server of the service that lags behind makes it pass for restored for a moment.
pub(crate) fn is_overtaken(stored: &Cluster, known: &Cluster) -> bool {
    stored.generation < known.generation || (stored.generation == known.generation && stored != known)
}

/// Replaces the copy.
pub(crate) async fn write(disk: Arc<dyn Disk>, cluster: &Cluster) -> Result<(), DiskError> {
    let temporary = format!("{FILE}.new");
    match disk.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(&temporary)?;
    let copy = Copy { checksum: checksum(cluster), cluster };
    file.append(&serde_json::to_vec_pretty(&copy).expect("a cluster is plain data"))?;
    file.sync().await?;
    disk.rename(&temporary, FILE)?;
    disk.sync_directory("").await
}

#[cfg(test)]
mod tests {
    use model::{Generation, Node, NodeId, Ring, Zone};
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;

    #[tokio::test]
    async fn a_damaged_copy_is_not_read() {
        let zone = Zone("a".to_owned());
        let nodes = vec![Node::new(NodeId(1), zone.clone(), "", None)];
        let cluster = Cluster::new("test", nodes, Ring::equal_slices(2, &[(NodeId(1), zone)]), Vec::new());
        let cluster = Cluster { generation: Generation(17), ..cluster };
        let disk = SimulatedDisk::new(1);
        write(Arc::new(disk.clone()), &cluster).await.unwrap();
        assert_eq!(read(&disk), Some(cluster.clone()));
        let bytes = disk.contents(FILE).unwrap();
        for at in 0..bytes.len() {
            disk.flip_bit(FILE, at as u64, 0);
            // A field that may be left out can lose its name; no other document is ever read.
            assert!(read(&disk).is_none_or(|found| found == cluster), "byte {at}");
            disk.flip_bit(FILE, at as u64, 0);
        }
        let digit = String::from_utf8(bytes).unwrap().find("17").unwrap();
        disk.flip_bit(FILE, digit as u64, 1);
        assert_eq!(read(&disk), None);
    }
}
