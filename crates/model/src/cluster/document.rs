//! A cluster as JSON.
//!
//! The number of the document's form comes first, so that a program which is too old for a document says so, whatever
//! else the document holds. Fields that this program does not know survive: they are written again.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cluster, Generation};
use crate::Unknown;
use crate::node::Node;
use crate::readonly::ReadOnlyStore;
use crate::ring::Ring;
use crate::store::Store;

/// The greatest form that this program understands. Form 1 had no steps: a program that knows no other takes a partition
/// that moves for one that stays. It is written as long as nothing has moved, for those that know no other. Form 2 had no
/// buckets: a node that knows no other takes each partition for one, and would look for records in the wrong places.
/// Form 3 had no stores whose numbers change: a program that knows no other takes them for what they were. It is written
/// as long as no store has ever changed, because such a program would not refuse requests from before a change, either.
pub const FORM: u32 = 4;
const FORM_BUCKETS: u32 = 3;
const FORM_STEPS: u32 = 2;
const FORM_PLAIN: u32 = 1;

/// A form that this program understands.
struct Form;

impl Form {
    /// That of documents from before forms were numbered.
    fn first() -> Form {
        Form
    }
}

impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = u32::deserialize(deserializer)?;
        let later = || {
            format!(
                "the cluster document has form {form}, and this program understands up to form {FORM}: it was written \
                 by a later program; run that one here, too"
            )
        };
        if form <= FORM { Ok(Form) } else { Err(D::Error::custom(later())) }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    form: u32,
    name: &'a str,
    generation: Generation,
    generation_accepted_min: Generation,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes_changed: Option<Generation>,
    nodes: &'a [Node],
    ring: &'a Ring,
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<u32>,
    stores: &'a [Store],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    read_only: &'a [ReadOnlyStore],
    #[serde(flatten)]
    unknown: &'a Unknown,
}

#[derive(Deserialize)]
struct Read {
    #[serde(default = "Form::first", rename = "form")]
    _form: Form,
    name: String,
    generation: Generation,
    generation_accepted_min: Generation,
    nodes_changed: Option<Generation>,
    nodes: Vec<Node>,
    ring: Ring,
    buckets: Option<u32>,
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
            form: match buckets {
                _ if stores.iter().any(Store::has_changed) => FORM,
                Some(_) => FORM_BUCKETS,
                None if ring.is_plain() => FORM_PLAIN,
                None => FORM_STEPS,
            },
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
