//! A cluster as JSON.
//!
//! The number of the document's form comes first, so that a program which is too old for a document says so, whatever
//! else the document holds. Fields that this program does not know survive: they are written again.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cluster, ClusterId, Generation, Ordered};
use crate::Unknown;
use crate::access::Users;
use crate::artifacts::ReadOnlyStore;
use crate::node::Node;
use crate::ring::Ring;
use crate::store::Store;

/// The form of documents that this program writes, and the least one that it understands. A form that later programs add
/// gets the next number; one that they still understand is no reason to refuse a document.
pub const FORM: u32 = 5;
/// The form of documents with users. A program that knows no users would serve anyone, so it must refuse such a document.
pub const FORM_CLOSED: u32 = 6;
/// The form of documents with a store whose keys lie in windows. A program that knows no windows would look for keys
/// where they are not.
pub const FORM_PLACED: u32 = 7;
/// The form of documents with a golden ring, and the greatest one that this program understands. A program that knows none
/// would spread it.
pub const FORM_GOLDEN: u32 = 8;
/// The greatest form that this program understands.
pub const FORM_MAX: u32 = FORM_GOLDEN;
/// That of documents from before forms were numbered.
const FORM_UNNAMED: u32 = 1;

/// A form that this program understands.
struct DocumentForm(u32);

impl<'de> Deserialize<'de> for DocumentForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DocumentForm::of(Option::deserialize(deserializer)?.unwrap_or(FORM_UNNAMED))
    }
}

/// What is looked at first.
#[derive(Deserialize)]
struct DocumentHead {
    form: Option<u32>,
    ring: Option<IgnoredAny>,
}

/// Why this program does not understand a cluster document, if that is because of the document's form.
pub fn refused_form(json: &[u8]) -> Option<String> {
    let DocumentHead { form, ring } = serde_json::from_slice(json).ok()?;
    let form = form.or(ring.map(|_| FORM_UNNAMED))?;
    let says = match form {
        FORM..=FORM_MAX => return None,
        0..FORM => {
            "an earlier program wrote it; export the data with that program, and load it into a new cluster of this one"
        }
        _ => "a later program wrote it; upgrade this one",
    };
    Some(format!("it has form {form}, and this program understands forms {FORM} to {FORM_MAX}: {says}"))
}

impl DocumentForm {
    fn of<E: Error>(form: u32) -> Result<DocumentForm, E> {
        match (FORM..=FORM_MAX).contains(&form) {
            true => Ok(DocumentForm(form)),
            false => {
                let text = format!("form {form}, and this program understands forms {FORM} to {FORM_MAX}");
                Err(E::custom(text))
            }
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    form: u32,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<ClusterId>,
    generation: Generation,
    generation_accepted_min: Generation,
    nodes_changed: Generation,
    nodes: &'a [Node],
    ring: &'a Ring,
    buckets: u32,
    stores: &'a [Store],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    read_only: &'a [ReadOnlyStore],
    #[serde(skip_serializing_if = "Users::is_empty")]
    users: &'a Users,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordered: Option<Ordered>,
    #[serde(flatten)]
    unknown: &'a Unknown,
}

#[derive(Deserialize)]
struct Read {
    form: DocumentForm,
    name: String,
    id: Option<ClusterId>,
    generation: Generation,
    generation_accepted_min: Generation,
    nodes_changed: Generation,
    nodes: Vec<Node>,
    ring: Ring,
    buckets: u32,
    stores: Vec<Store>,
    #[serde(default)]
    read_only: Vec<ReadOnlyStore>,
    #[serde(default)]
    users: Users,
    ordered: Option<Ordered>,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Cluster {
    /// The form of its document: the least one that has all that it says.
    pub fn form(&self) -> u32 {
        match () {
            () if self.ring.is_golden() => FORM_GOLDEN,
            () if self.stores.iter().any(|store| !store.placement.is_hash()) => FORM_PLACED,
            () if !self.users.is_empty() => FORM_CLOSED,
            () => FORM,
        }
    }

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
            users,
            ordered,
            unknown,
            ..
        } = self;
        Written {
            form: self.form(),
            name: &self.name,
            id: self.id,
            generation: *generation,
            generation_accepted_min: *generation_accepted_min,
            nodes_changed: *nodes_changed,
            nodes,
            ring,
            buckets: *buckets,
            stores,
            read_only,
            users,
            ordered: *ordered,
            unknown,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cluster {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Read {
            form: DocumentForm(form),
            name,
            id,
            generation,
            generation_accepted_min,
            nodes_changed,
            nodes,
            ring,
            buckets,
            stores,
            read_only,
            users,
            ordered,
            unknown,
        } = Read::deserialize(deserializer)?;
        let cluster = Cluster {
            name,
            id,
            generation,
            generation_accepted_min,
            nodes_changed,
            nodes,
            ring,
            buckets,
            stores,
            read_only,
            users,
            ordered,
            unknown,
        };
        cluster.check().map_err(D::Error::custom)?;
        if cluster.form() > form {
            let needed = cluster.form();
            let text = format!(
                "it says form {form}, and what it has needs form {needed}: an earlier program wrote it"
            );
            return Err(D::Error::custom(text));
        }
        Ok(cluster)
    }
}
