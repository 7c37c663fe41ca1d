//! A directory that somebody else's files occupy: a mistyped path, which must not pass for a new disk.
//!
//! A node on a new disk takes its id and refills, so a slip in a path would leave its own directory behind. A new disk
//! is empty, or nearly; whatever a node itself may have left there, even one that ended while it first started, says
//! that the directory was meant.

use model::NodeId;
use runtime::Disk;

use super::given::GIVEN;
use super::{ANNOUNCED, FILE, IdentityError, read};

/// The files that a node writes into its directory, each perhaps with `.new` behind it.
const FILES: [&str; 11] = [
    FILE,
    GIVEN,
    ANNOUNCED,
    "process",
    "cluster.json",
    "moved.json",
    "epoch",
    "refill",
    "trees",
    "repair-stopped",
    "repair-stopped-parts",
];
/// Its directories.
const DIRECTORIES: [&str; 4] = ["stores", "hints", "artifacts", super::bring_back::DIRECTORY];
/// How the names of the other ones begin: what was set aside.
const DIRECTORIES_BEGIN: &str = "set-aside-";
/// What says nothing: a new file system brings the one along, and others than nodes hold directories with the other.
const NEUTRAL: [&str; 2] = ["lost+found", "lock"];
/// Names that are shown at most.
const SHOWN_MAX: usize = 3;
/// Names below which nodes are looked for at most.
const LOOKED_AT_MAX: usize = 256;

/// Refuses a directory that is not empty and holds nothing of a node. It leaves no trace there. `owner`: cluster and node
/// that it should belong to, if somebody says.
pub(super) fn refuse(disk: &dyn Disk, owner: Option<(&str, NodeId)>) -> Result<(), IdentityError> {
    let mut names = disk.list("")?;
    names.retain(|name| !NEUTRAL.contains(&&**name));
    if names.is_empty() || names.iter().any(|name| is_of_a_node(name)) {
        return Ok(());
    }
    let nodes: Vec<_> = names.iter().take(LOOKED_AT_MAX).filter_map(|name| node_below(disk, name)).collect();
    let found = list(names.iter().map(|name| format!("{name:?}")).collect());
    let own = nodes.iter().find(|below| owner == Some((&*below.cluster, below.node)));
    let advice = match own {
        Some(below) => {
            format!(
                "{:?} in it is the data directory of {}: start the node with that directory",
                below.name, below.node
            )
        }
        None if nodes.is_empty() => NEXT.to_owned(),
        None => {
            let shown =
                |below: &Below| format!("{} of cluster {:?} in {:?}", below.node, below.cluster, below.name);
            format!(
                "it holds the data directories of other nodes ({}); {NEXT}",
                list(nodes.iter().map(shown).collect())
            )
        }
    };
    Err(IdentityError::Occupied { found, advice })
}

/// What to do where nothing says which directory was meant.
const NEXT: &str =
    "start the node with its own data directory, or with an empty one if the node is new or its disk is lost";

/// A node whose directory lies below.
struct Below {
    name: String,
    cluster: String,
    node: NodeId,
}

fn node_below(disk: &dyn Disk, name: &str) -> Option<Below> {
    let found = read(disk, &format!("{name}/{FILE}")).ok()??;
    Some(Below { name: name.to_owned(), cluster: found.cluster, node: found.node })
}

fn is_of_a_node(name: &str) -> bool {
    FILES.contains(&name.strip_suffix(".new").unwrap_or(name))
        || DIRECTORIES.contains(&name)
        || name.starts_with(DIRECTORIES_BEGIN)
}

fn list(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(SHOWN_MAX);
    names.truncate(SHOWN_MAX);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
