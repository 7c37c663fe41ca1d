//! Fleets: one document for each managed cluster, and beside it what its controller saw last.
//!
//! ```text
//! /elasticity/fleets/<name>  persistent  the fleet; its generation grows by one with each publication
//! /elasticity/looks/<name>   persistent  what a controller saw last, for people; nothing is decided by it
//! /elasticity/office/...     ephemeral, sequential  candidates for the controller's office
//! ```
//!
//! Commands put orders into a fleet, and the controller answers them there: both by compare-and-set.
//!
//! Must never: write a fleet that was not made from the one that is stored.

use model::elasticity::{Fleet, Look};
use thiserror::Error;

use super::numbered::{look, replace};
use super::{ReadError, create_parents, decode, encode, known};
use crate::{CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected};

/// Longest name of a fleet, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Below which candidates for the controller's office register.
pub fn office_path() -> DocumentPath {
    known("/elasticity/office")
}

fn fleets_path() -> DocumentPath {
    known("/elasticity/fleets")
}

/// Where the fleet of this name is; `None` where no fleet can have the name.
pub fn fleet_path(name: &str) -> Option<DocumentPath> {
    is_name(name).then(|| fleets_path().child(name).expect("the name is short and plain"))
}

fn look_path(name: &str) -> Option<DocumentPath> {
    is_name(name).then(|| known("/elasticity/looks").child(name).expect("the name is short and plain"))
}

/// Whether a fleet can have this name, which is also its machines' tag: letters, digits, `-` and `_`, at most 64.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Why a fleet could not be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FleetError {
    /// No fleet can have this name.
    #[error(
        "a fleet cannot be called {name:?}: its name has 1 to 64 letters, digits, hyphens and underscores"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// What is stored is not what it was made from.
    #[error("fleet {name} was changed meanwhile by another process; look at it, and try again")]
    Overtaken {
        /// Its name.
        name: String,
    },
    /// What is stored cannot be read, or the service refused.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<CoordinationError> for FleetError {
    fn from(error: CoordinationError) -> FleetError {
        FleetError::Read(error.into())
    }
}

/// The names of all fleets, sorted.
///
/// # Errors
/// What the service refuses.
pub async fn names(service: &dyn CoordinationService) -> Result<Vec<String>, CoordinationError> {
    let mut names = match service.children(&fleets_path()).await {
        Err(CoordinationError::NoNode { .. }) => Vec::new(),
        names => names?,
    };
    names.retain(|name| is_name(name));
    names.sort_unstable();
    Ok(names)
}

/// A fleet, and the document that it was read from; `None` when there is none.
///
/// # Errors
/// When it is malformed, which one of a later version may be for this one; or when the service refuses.
pub async fn read(
    service: &dyn CoordinationService,
    name: &str,
) -> Result<Option<(Fleet, Document)>, ReadError> {
    let Some(path) = fleet_path(name) else { return Ok(None) };
    let Some(found) = look(service, &path).await? else { return Ok(None) };
    let fleet = decode(&path, &found.data)?;
    Ok(Some((fleet, found)))
}

/// Creates a fleet.
///
/// # Errors
/// [`FleetError::BadName`]; [`FleetError::Overtaken`] when there is one already. After
/// [`CoordinationError::Indeterminate`] it may be there.
pub async fn create(service: &dyn CoordinationService, fleet: &Fleet) -> Result<(), FleetError> {
    let name = fleet.name.clone();
    let Some(path) = fleet_path(&name) else { return Err(FleetError::BadName { name }) };
    create_parents(service, &path).await?;
    written(replace(service, &path, encode(fleet), None).await, name)
}

/// Publishes a fleet that was made from the one that was read, and is its successor.
///
/// # Errors
/// [`FleetError::Overtaken`] when another one is stored. After [`CoordinationError::Indeterminate`] it may be published:
/// read what is stored.
///
/// # Panics
/// When it is no successor: its generation is one more than that of the fleet that was read, and its name the same.
pub async fn publish(
    service: &dyn CoordinationService,
    fleet: &Fleet,
    read: &Document,
) -> Result<(), FleetError> {
    let name = fleet.name.clone();
    let Some(path) = fleet_path(&name) else { return Err(FleetError::BadName { name }) };
    let before: Fleet = decode(&path, &read.data)?;
    assert!(
        fleet.generation == before.generation + 1 && fleet.name == before.name && fleet.uid == before.uid,
        "fleet {name} of generation {} is no successor of generation {}",
        fleet.generation,
        before.generation
    );
    written(replace(service, &path, encode(fleet), Some(read)).await, name)
}

/// Removes a fleet, if it is the one that was read, and what was seen of it. Its machines go on as they are.
///
/// # Errors
/// [`FleetError::Overtaken`] when another one is stored, or none. After [`CoordinationError::Indeterminate`] it may be gone.
pub async fn remove(
    service: &dyn CoordinationService,
    name: &str,
    read: &Document,
) -> Result<(), FleetError> {
    let (Some(path), Some(look)) = (fleet_path(name), look_path(name)) else {
        return Err(FleetError::BadName { name: name.to_owned() });
    };
    let removed = service.delete(&path, Expected::Version(read.stat.version)).await;
    written(removed, name.to_owned())?;
    match service.delete(&look, Expected::Any).await {
        Ok(()) | Err(CoordinationError::NoNode { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn written(written: Result<(), CoordinationError>, name: String) -> Result<(), FleetError> {
    match written {
        Err(
            CoordinationError::BadVersion { .. }
            | CoordinationError::NodeExists { .. }
            | CoordinationError::NoNode { .. },
        ) => Err(FleetError::Overtaken { name }),
        written => written.map_err(FleetError::from),
    }
}

/// What a controller saw last of a fleet; `None` when none has looked yet.
///
/// # Errors
/// As [`read`].
pub async fn read_look(service: &dyn CoordinationService, name: &str) -> Result<Option<Look>, ReadError> {
    let Some(path) = look_path(name) else { return Ok(None) };
    look(service, &path).await?.map(|found| decode(&path, &found.data)).transpose()
}

/// Writes what a controller saw, over whatever is there.
///
/// # Errors
/// What the service refuses.
pub async fn write_look(
    service: &dyn CoordinationService,
    name: &str,
    seen: &Look,
) -> Result<(), CoordinationError> {
    let Some(path) = look_path(name) else { return Ok(()) };
    match service.set(&path, encode(seen), Expected::Any).await {
        Err(CoordinationError::NoNode { .. }) => {
            create_parents(service, &path).await?;
            service.create(&path, encode(seen), CreateMode::Persistent).await.map(drop)
        }
        written => written.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use model::elasticity::{Mode, Policy};

    use super::*;
    use crate::memory::MemoryService;

    fn fleet() -> Fleet {
        let (add, remove) = Policy::paper_rules();
        let policy = Policy {
            engine: "tontine".to_owned(),
            provider: "local".to_owned(),
            machine_type: "small".to_owned(),
            min: 3,
            max: 6,
            standby: 0,
            mode: Mode::Auto,
            budget: Default::default(),
            deadlines: Default::default(),
            sources: Vec::new(),
            add,
            remove,
            sizing: Default::default(),
            objective: Default::default(),
            cooldowns: Default::default(),
            sample_age_max: 30,
        };
        Fleet::new("shop", "a1b2", policy)
    }

    #[tokio::test]
    async fn of_two_successors_of_one_fleet_one_is_published() {
        let memory = MemoryService::new();
        let (one, two) = (memory.open(), memory.open());
        assert_eq!(names(&one).await.unwrap(), [""; 0]);
        create(&one, &fleet()).await.unwrap();
        let twice = create(&two, &fleet()).await.unwrap_err();
        assert_eq!(twice, FleetError::Overtaken { name: "shop".to_owned() });
        let (first, document) = read(&one, "shop").await.unwrap().unwrap();
        let (second, same) = read(&two, "shop").await.unwrap().unwrap();
        publish(&one, &Fleet { generation: 2, target: Some(4), ..first }, &document).await.unwrap();
        let late = publish(&two, &Fleet { generation: 2, target: Some(5), ..second }, &same).await;
        assert_eq!(late.unwrap_err(), FleetError::Overtaken { name: "shop".to_owned() });
        let (stored, _) = read(&two, "shop").await.unwrap().unwrap();
        assert_eq!((stored.generation, stored.target), (2, Some(4)));
        assert_eq!(names(&one).await.unwrap(), ["shop"]);
    }

    #[tokio::test]
    async fn a_fleet_is_removed_as_it_was_read_or_not_at_all() {
        let memory = MemoryService::new();
        let service = memory.open();
        create(&service, &fleet()).await.unwrap();
        let (first, old) = read(&service, "shop").await.unwrap().unwrap();
        publish(&service, &Fleet { generation: 2, ..first }, &old).await.unwrap();
        let overtaken = FleetError::Overtaken { name: "shop".to_owned() };
        assert_eq!(remove(&service, "shop", &old).await, Err(overtaken.clone()));
        let (_, new) = read(&service, "shop").await.unwrap().unwrap();
        remove(&service, "shop", &new).await.unwrap();
        assert_eq!(read(&service, "shop").await.unwrap(), None);
        assert_eq!(remove(&service, "shop", &new).await, Err(overtaken));
    }

    #[tokio::test]
    async fn names_that_would_lie_elsewhere_are_refused() {
        let memory = MemoryService::new();
        for name in ["", "a/b", "..", "a b", &"x".repeat(65)] {
            let named = Fleet { name: name.to_owned(), ..fleet() };
            let refused = create(&memory.open(), &named).await.unwrap_err();
            assert_eq!(refused, FleetError::BadName { name: name.to_owned() });
            assert_eq!(read(&memory.open(), name).await.unwrap(), None);
        }
    }
}
