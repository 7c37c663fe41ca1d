//! A cluster as JSON.
//!
//! The number of the document's form comes first, so that a program which is too old for a document says so, whatever
//! else the document holds. Fields that this program does not know survive: they are written again.

use std::cmp::Ordering;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cluster, Generation};
use crate::Unknown;
use crate::node::Node;
use crate::readonly::ReadOnlyStore;
use crate::ring::Ring;
use crate::store::Store;

/// The form of documents that this program writes, and the only one that it understands. A form that later programs add
/// gets the next number; one that they still understand is no reason to refuse a document.
pub const FORM: u32 = 5;

/// A form that this program understands.
struct Form;

impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Programs from before forms were numbered named none.
        Form::of(Option::deserialize(deserializer)?.unwrap_or(1))
    }
}

impl Form {
    fn of<E: Error>(form: u32) -> Result<Form, E> {
        let refused = |says: &str| {
            E::custom(format!(
                "the cluster document has form {form}, and this program understands form {FORM}: {says}"
            ))
        };
        match form.cmp(&FORM) {
            Ordering::Equal => Ok(Form),
            Ordering::Greater => Err(refused("a later program wrote it; upgrade this one")),
            Ordering::Less => Err(refused(
                "an earlier program wrote it; export the data with that program, and load it into a new cluster of this \
                 one",
            )),
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    form: u32,
    name: &'a str,
    generation: Generation,
    generation_accepted_min: Generation,
    nodes_changed: Generation,
    nodes: &'a [Node],
    ring: &'a Ring,
    buckets: u32,
    stores: &'a [Store],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    read_only: &'a [ReadOnlyStore],
    #[serde(flatten)]
    unknown: &'a Unknown,
}

#[derive(Deserialize)]
struct Read {
    #[serde(rename = "form")]
    _form: Form,
    name: String,
    generation: Generation,
    generation_accepted_min: Generation,
    nodes_changed: Generation,
    nodes: Vec<Node>,
    ring: Ring,
    buckets: u32,
    stores: Vec<Store>,
    #[serde(default)]
    read_only: Vec<ReadOnlyStore>,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Cluster {
    /// How many bytes the document has.
    pub fn document_bytes(&self) -> usize {
        serde_json::to_vec(self).expect("a cluster is plain data").len()
    }
}

impl Serialize for Cluster {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Cluster {
            generation,
            generation_accepted_min,
            nodes_changed,
            nodes,
            ring,
            buckets,
            stores,
            read_only,
            unknown,
            ..
        } = self;
        Written {
            form: FORM,
            name: &self.name,
            generation: *generation,
            generation_accepted_min: *generation_accepted_min,
            nodes_changed: *nodes_changed,
            nodes,
            ring,
            buckets: *buckets,
            stores,
            read_only,
            unknown,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cluster {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Read {
            name,
            generation,
            generation_accepted_min,
            nodes_changed,
            nodes,
            ring,
            buckets,
            stores,
            read_only,
            unknown,
            ..
        } = Read::deserialize(deserializer)?;
        let cluster = Cluster {
            name,
            generation,
            generation_accepted_min,
            nodes_changed,
            nodes,
            ring,
            buckets,
            stores,
            read_only,
            unknown,
        };
        cluster.check().map_err(D::Error::custom)?;
        Ok(cluster)
    }
}
