//! What becomes of the cluster document's place when all documents move to another service.
//!
//! ```text
//!          old place                              new place
//!          {"name": …}     in force               –
//!          {"name": …}     in force               {"arriving": MOVE}                   claimed
//!          {"moving": MOVE, "cluster": {…}}       {"arriving": MOVE}                   fenced, copied
//!          {"moving": MOVE, "cluster": {…}}       {"arriving": MOVE, "cluster": {…}}   ready
//!          {"moved": MOVE, "generation": 7}       {"arriving": MOVE, "cluster": {…}}   decided
//!          {"moved": MOVE, "generation": 7}       {"name": …}                          in force
//! ```
//!
//! The decision is one compare-and-set at the old place: `moving` becomes `moved`, or what it was. Up to then the old
//! place is in force, from then on the new one, and anybody who comes from the old place may write down at the new one
//! that it is.
//!
//! **The fence.** Nobody publishes over `moving`, because publishing compares and sets. Every other document is written
//! first, and its writer then looks whether the fence is up; whoever moves the documents puts up the fence first, and
//! then reads them. So a write that was confirmed is among what is copied. One that finds the fence is answered
//! `Indeterminate`.
//!
//! A program that knows nothing of moves takes all of these for malformed documents, and changes none of them.

use bytes::Bytes;
use model::{Cluster, Generation};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{ReadError, cluster_path, decode, encode};
use crate::{CoordinationError, CoordinationService, DocumentPath, DocumentVersion, Expected};

/// A move of all documents of a cluster from one service to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceMove {
    /// The cluster's name.
    pub name: String,
    /// Address of the service that they leave.
    pub from: String,
    /// Address of the service that they go to.
    pub to: String,
    /// Tells this attempt from every other one.
    pub attempt: String,
}

/// What the place of the cluster document says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterPlace {
    /// The cluster document, which is in force.
    InForce(Cluster),
    /// The cluster document, which is in force, and must not be changed: the documents are being copied.
    Moving(ServiceMove, Cluster),
    /// The documents are elsewhere.
    Moved(ServiceMove),
    /// The documents are being copied to this place, and are not in force here.
    Arriving(Arriving),
}

/// Documents that are being copied here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arriving {
    pub(crate) this: ServiceMove,
    /// The cluster document, once all others are here.
    pub(crate) cluster: Option<Bytes>,
    /// What was here before, when the documents come back to a place that they had left.
    pub(crate) before: Option<Bytes>,
}

/// The form of all that is no cluster document.
#[derive(Default, Serialize, Deserialize)]
struct MarkerForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moving: Option<ServiceMove>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved: Option<ServiceMove>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arriving: Option<ServiceMove>,
    /// Of `moved`: which generation of the cluster document went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    /// The cluster document as it was, byte for byte: a later version's fields are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Box<RawValue>>,
}

fn raw(text: &Bytes) -> Option<Box<RawValue>> {
    let text = String::from_utf8(text.to_vec()).expect("what was read as JSON is text");
    Some(RawValue::from_string(text).expect("what was read as JSON is JSON"))
}

fn text(raw: Box<RawValue>) -> Bytes {
    Bytes::from(String::from(Box::<str>::from(raw)))
}

/// Reads what the place of the cluster document says.
pub(super) fn read_standing(data: &[u8]) -> Result<ClusterPlace, ReadError> {
    let path = cluster_path();
    match decode::<MarkerForm>(&path, data)? {
        MarkerForm { moving: Some(this), cluster: Some(cluster), .. } => {
            Ok(ClusterPlace::Moving(this, read(&path, cluster.get().as_bytes())?))
        }
        MarkerForm { moved: Some(this), .. } => Ok(ClusterPlace::Moved(this)),
        MarkerForm { arriving: Some(this), cluster, before, .. } => Ok(ClusterPlace::Arriving(Arriving {
            this,
            cluster: cluster.map(text),
            before: before.map(text),
        })),
        _ => Ok(ClusterPlace::InForce(read(&path, data)?)),
    }
}

fn read(path: &DocumentPath, data: &[u8]) -> Result<Cluster, ReadError> {
    match model::cluster::refused_form(data) {
        Some(reason) => Err(ReadError::OtherForm { path: path.clone(), reason }),
        None => decode(path, data),
    }
}

/// The document that says `moving`, around the cluster document as it is.
pub(crate) fn moving(this: &ServiceMove, cluster: &Bytes) -> Bytes {
    encode(&MarkerForm { moving: Some(this.clone()), cluster: raw(cluster), ..MarkerForm::default() })
}

/// The cluster document within one that says `moving`.
pub(crate) fn still_moving(data: &[u8]) -> Option<Bytes> {
    let form: MarkerForm = serde_json::from_slice(data).ok()?;
    form.moving.and(form.cluster).map(text)
}

/// The document that says `moved`.
pub(crate) fn moved(this: &ServiceMove, generation: Generation) -> Bytes {
    encode(&MarkerForm { moved: Some(this.clone()), generation: Some(generation), ..MarkerForm::default() })
}

/// The document that says `arriving`.
pub(crate) fn arriving(arriving: &Arriving) -> Bytes {
    encode(&MarkerForm {
        arriving: Some(arriving.this.clone()),
        cluster: arriving.cluster.as_ref().and_then(raw),
        before: arriving.before.as_ref().and_then(raw),
        ..MarkerForm::default()
    })
}

/// What the place of the cluster document says, its bytes and its version; `None` when nothing is there.
pub(crate) async fn look(
    service: &dyn CoordinationService,
) -> Result<Option<(ClusterPlace, Bytes, DocumentVersion)>, ReadError> {
    match service.get(&cluster_path()).await {
        Ok(document) => {
            Ok(Some((read_standing(&document.data)?, document.data.clone(), document.stat.version)))
        }
        Err(CoordinationError::NoNode { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The cluster document for readers, from what its place says.
pub(super) fn for_readers(standing: ClusterPlace) -> Result<Cluster, ReadError> {
    match standing {
        ClusterPlace::InForce(cluster) | ClusterPlace::Moving(_, cluster) => Ok(cluster),
        ClusterPlace::Moved(this) => Err(ReadError::Moved(Box::new(this))),
        ClusterPlace::Arriving(Arriving { this, before, .. }) => {
            match before.as_deref().map(read_standing).transpose()? {
                Some(ClusterPlace::Moved(left)) => Err(ReadError::Moved(Box::new(left))),
                _ => Err(ReadError::Arriving(Box::new(this))),
            }
        }
    }
}

/// The cluster document for those who would replace it.
pub(super) fn for_writers(standing: ClusterPlace) -> Result<Cluster, ReadError> {
    match standing {
        ClusterPlace::Moving(this, _) => Err(ReadError::Moving(Box::new(this))),
        other => for_readers(other),
    }
}

/// Comes after the write of every document but the cluster document, and says whether it counts.
///
/// # Errors
/// `Indeterminate` when the documents are being moved or have been, or when nobody can say.
pub(super) async fn counts(service: &dyn CoordinationService) -> Result<(), CoordinationError> {
    let reason = match look(service).await {
        Ok(None | Some((ClusterPlace::InForce(_), ..))) => return Ok(()),
        Ok(Some((ClusterPlace::Moving(this, _) | ClusterPlace::Moved(this), ..))) => {
            format!("the documents are on their way to {}", this.to)
        }
        Ok(Some((ClusterPlace::Arriving(arriving), ..))) => {
            format!("the documents are on their way from {}", arriving.this.from)
        }
        // It changes nothing, and neither is this write's outcome any other.
        Err(ReadError::Malformed { .. }) => return Ok(()),
        Err(error) => error.to_string(),
    };
    Err(CoordinationError::Indeterminate { reason })
}

/// Comes from the old place, where it was decided that the documents are in force at the new one, and sees to it that
/// the new one says so.
///
/// # Errors
/// [`ReadError::Moved`] when they have moved on. [`ReadError::Arriving`] when the new place knows of another move only.
pub async fn arrive(service: &dyn CoordinationService, this: &ServiceMove) -> Result<(), ReadError> {
    loop {
        let Some((standing, _, version)) = look(service).await? else {
            let path = cluster_path();
            return Err(CoordinationError::NoNode { path }.into());
        };
        let ready = match &standing {
            ClusterPlace::Arriving(arriving) if arriving.this == *this => arriving.cluster.clone(),
            _ => None,
        };
        let Some(cluster) = ready else {
            let found = for_readers(standing)?;
            return if found.name == this.name { Ok(()) } else { Err(other_cluster(&found, this)) };
        };
        match service.set(&cluster_path(), cluster, Expected::Version(version)).await {
            Ok(_) => return Ok(()),
            // Somebody was faster.
            Err(CoordinationError::BadVersion { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn other_cluster(found: &Cluster, this: &ServiceMove) -> ReadError {
    let reason = format!("it is that of cluster {:?}, not of cluster {:?}", found.name, this.name);
    ReadError::Malformed { path: cluster_path(), reason }
}
