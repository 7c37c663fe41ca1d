//! What a node that has lost something says when it starts: what happened, what it does about it, and where to look.
//!
//! The same facts are events; but whoever has just started a node looks at its console.

use std::path::Path;

use model::{Cluster, NodeId, Store};
use node::events::Event;

/// The line for a node that comes back with these events; `None` when it has lost nothing.
pub(crate) fn line(id: NodeId, data_dir: &Path, cluster: &Cluster, events: &[Event]) -> Option<String> {
    let (mut lost, mut aside, mut only_copies) = (Vec::new(), None, Vec::new());
    for event in events {
        match event {
            Event::DiskLost {} => lost.push("its data directory is new, so it has lost its disk".to_owned()),
            Event::RollbackNoticed {} => lost.push("its data directory is an older copy".to_owned()),
            Event::StoreLost { store } => lost.push(format!("its records of store {store} are gone")),
            Event::StoreBroughtBack { store } => {
                lost.push(format!("the records of store {store} that lay in bring-back are its own again"));
            }
            Event::HintsLost {} => lost.push("the hints that it held are gone".to_owned()),
            Event::ContentsSetAside { directory } => aside = Some(data_dir.join(directory)),
            Event::OnlyCopySetAside { store, .. } => only_copies.push(store.as_str()),
            _ => {}
        }
    }
    if lost.is_empty() && aside.is_none() {
        return None;
    }
    let all = events.iter().any(|event| matches!(event, Event::DiskLost {} | Event::RollbackNoticed {}));
    let is_lost = |store: &str| {
        all || events.iter().any(|event| matches!(event, Event::StoreLost { store: lost } if lost == store))
    };
    let lost_stores = cluster.stores.iter().filter(|store| is_lost(store.name.as_str()));
    let (single, refilled): (Vec<&Store>, Vec<&Store>) =
        lost_stores.partition(|store| store.consistency.replicas <= 1);
    let gone = single.iter().map(|store| store.name.as_str());
    let gone: Vec<&str> = gone.filter(|store| !only_copies.contains(store)).collect();
    let mut says = lost;
    if !refilled.is_empty() {
        says.push("it fetches what it held from the other nodes, and lets them answer until then".to_owned());
    }
    if !gone.is_empty() {
        says.push(format!("no other node holds what it held of {}, with one replica", gone.join(", ")));
    }
    if let Some(aside) = aside {
        let aside = aside.display();
        says.push(match only_copies.is_empty() {
            true => format!("what lay there before is set aside in {aside}, and may be deleted"),
            false => format!(
                "what lay there before is set aside in {aside}: keep it, it is the only copy of {} (docs/operating/healing.md \
                 says how to bring it back)",
                only_copies.join(", ")
            ),
        });
    }
    let id = id.0;
    Some(format!(
        "node {id}: {}; `tontine events --from {id}` tells what it found, `tontine repair status` how far it is",
        says.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use control::bootstrap::Blueprint;
    use model::{Consistency, Node, Zone};

    use super::*;

    fn said(replicas: u8, events: &[Event]) -> Option<String> {
        let node =
            |id| Node { id: NodeId(id), zone: Zone("a".to_owned()), native: format!("h:{id}"), resp: None };
        let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
        let cluster = Blueprint::new("dev", [1, 2, 3].map(node).to_vec(), consistency).unwrap().cluster();
        line(NodeId(2), Path::new("d/node-2"), &cluster, events)
    }

    #[test]
    fn a_node_that_lost_nothing_says_nothing() {
        assert_eq!(said(3, &[]), None);
        assert_eq!(said(1, &[Event::NodeStarted { incarnation: 1, generation: 1 }]), None);
    }

    #[test]
    fn a_node_says_what_it_lost_what_it_does_and_where_to_look() {
        let lost = said(3, &[Event::DiskLost {}]).unwrap();
        assert_eq!(
            lost,
            "node 2: its data directory is new, so it has lost its disk; it fetches what it held from the other nodes, \
             and lets them answer until then; `tontine events --from 2` tells what it found, `tontine repair status` \
             how far it is"
        );
        let hints =
            said(3, &[Event::NodeStarted { incarnation: 1, generation: 1 }, Event::HintsLost {}]).unwrap();
        assert!(hints.contains("hints that it held are gone; `tontine events"), "{hints}");
        let directory = "set-aside-7".to_owned();
        let aside = Event::ContentsSetAside { directory: directory.clone() };
        let copied = said(3, &[Event::RollbackNoticed {}, aside.clone()]).unwrap();
        assert!(copied.contains("is set aside in d/node-2/set-aside-7, and may be deleted;"), "{copied}");
        let only = Event::OnlyCopySetAside { store: "default".to_owned(), directory };
        let only = said(1, &[Event::RollbackNoticed {}, aside, only]).unwrap();
        assert!(only.contains("d/node-2/set-aside-7: keep it, it is the only copy of default ("), "{only}");
        assert!(only.contains("no other node holds what it held of siblings, with one replica;"), "{only}");
        assert!(!only.contains("from the other nodes"), "{only}");
        let store = said(1, &[Event::StoreLost { store: "siblings".to_owned() }]).unwrap();
        assert!(store.contains("no other node holds what it held of siblings, with"), "{store}");
    }
}
