//! What changed between two documents of a cluster, for a reader that has the older one.
//!
//! A document of a thousand partitions has a hundred kilobytes, and a step of a few of them reaches each client. So a
//! node tells what changed: the fields that differ, and the partitions that do, by their place in the ring.
//! **Never** apply a change to another document than the one that it was made from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::Cluster;
use crate::generation::Generation;

/// The field of the document that is compared by its entries.
const RING: &str = "ring";

/// A change as it is written. No document has a field of the name of its first one.
#[derive(Serialize, Deserialize)]
struct DocumentChange {
    /// The generation of the document that it was made from.
    changes_generation: Generation,
    /// That of the document that it makes.
    generation: Generation,
    /// Fields that differ.
    fields: Map<String, Json>,
    /// Fields that the newer document has no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<String>,
    /// Entries of the ring that differ, each with its place. The newer ring has as many entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ring: Vec<(usize, Json)>,
}

/// Of either kind what is looked at first.
#[derive(Deserialize)]
struct ChangeHead {
    changes_generation: Option<Generation>,
    generation: Generation,
}

impl Cluster {
    /// What makes this document of an older one, as JSON for [`Cluster::handed_over`].
    pub fn change_from(&self, before: &Cluster) -> Vec<u8> {
        let (mut old, mut new) = (fields(before), fields(self));
        let mut change = DocumentChange {
            changes_generation: before.generation,
            generation: self.generation,
            fields: Map::new(),
            gone: Vec::new(),
            ring: Vec::new(),
        };
        if let (Some(Json::Array(old)), Some(Json::Array(entries))) = (old.get(RING), new.get(RING))
            && old.len() == entries.len()
        {
            let entries = entries.iter().zip(old).enumerate().filter(|(_, (new, old))| new != old);
            change.ring = entries.map(|(place, (new, _))| (place, new.clone())).collect();
            new.remove(RING);
        }
        for (name, value) in new {
            if old.remove(&name).is_none_or(|old| old != value) {
                change.fields.insert(name, value);
            }
        }
        old.remove(RING);
        change.gone = old.into_iter().map(|(name, _)| name).collect();
        serde_json::to_vec(&change).expect("a change is plain data")
    }

    /// The document that a node has handed over to somebody who named `known`: whole, or as a change of that. `None` when it
    /// is no document of this cluster that is newer.
    pub fn handed_over(json: &[u8], known: &Cluster) -> Option<Cluster> {
        let head: ChangeHead = serde_json::from_slice(json).ok()?;
        if head.generation <= known.generation {
            return None;
        }
        let cluster = match head.changes_generation {
            None => serde_json::from_slice(json).ok()?,
            Some(from) if from == known.generation => known.changed(serde_json::from_slice(json).ok()?)?,
            Some(_) => return None,
        };
        (cluster.is_also(known) && cluster.generation == head.generation).then_some(cluster)
    }

    /// The generation of the document that was handed over, whole or as a change; 0 for what is none.
    pub fn generation_of(json: &[u8]) -> Generation {
        serde_json::from_slice(json).map_or(Generation(0), |head: ChangeHead| head.generation)
    }

    fn changed(&self, change: DocumentChange) -> Option<Cluster> {
        let mut document = fields(self);
        document.extend(change.fields);
        for name in &change.gone {
            document.remove(name);
        }
        for (place, entry) in change.ring {
            *document.get_mut(RING)?.get_mut(place)? = entry;
        }
        serde_json::from_value(Json::Object(document)).ok()
    }
}

fn fields(cluster: &Cluster) -> Map<String, Json> {
    match serde_json::to_value(cluster) {
        Ok(Json::Object(fields)) => fields,
        other => unreachable!("a cluster is an object of plain data: {other:?}"),
    }
}
