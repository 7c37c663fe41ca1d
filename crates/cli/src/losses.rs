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
            Event::DiskLost {} => lost.push("its disk was lost: the data directory is new".to_owned()),
            Event::RollbackNoticed {} => {
                lost.push("its data directory was restored from an older copy".to_owned())
            }
            Event::StoreLost { store } => lost.push(format!("its records of store {store} are lost")),
            Event::StoreBroughtBack { store } => {
                lost.push(format!("it restored the records of store {store} from bring-back"));
            }
            Event::HintsLost {} => lost.push("its hints for other nodes are lost".to_owned()),
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
        says.push("it is refilling its data from the other nodes, which answer reads until then".to_owned());
    }
    if !gone.is_empty() {
        says.push(format!(
            "data loss: no other node has a copy of its records of {}, with one replica",
            gone.join(", ")
        ));
    }
    if let Some(aside) = aside {
        let aside = aside.display();
        says.push(match only_copies.is_empty() {
            true => format!("its former files are in {aside} and may be deleted"),
            false => format!(
                "keep its former files in {aside}, the only copy of {} (docs/operating/healing.md explains how to restore \
                 it)",
                only_copies.join(", ")
            ),
        });
    }
    let id = id.0;
    Some(format!(
        "node {id}: {}; see the details with `tontine events --from {id}` and the progress with `tontine repair status`",
        says.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use control::bootstrap::Blueprint;
    use model::{Consistency, Node, Zone};

    use super::*;

    fn said(replicas: u8, events: &[Event]) -> Option<String> {
        let node = |id| Node::new(NodeId(id), Zone("a".to_owned()), format!("h:{id}"), None);
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
            "node 2: its disk was lost: the data directory is new; it is refilling its data from the other nodes, which \
             answer reads until then; see the details with `tontine events --from 2` and the progress with `tontine \
             repair status`"
        );
        let hints =
            said(3, &[Event::NodeStarted { incarnation: 1, generation: 1 }, Event::HintsLost {}]).unwrap();
        assert!(
            hints.contains("its hints for other nodes are lost; see the details with `tontine events"),
            "{hints}"
        );
        let directory = "set-aside-7".to_owned();
        let aside = Event::ContentsSetAside { directory: directory.clone() };
        let copied = said(3, &[Event::RollbackNoticed {}, aside.clone()]).unwrap();
        assert!(
            copied.contains("its former files are in d/node-2/set-aside-7 and may be deleted;"),
            "{copied}"
        );
        let only = Event::OnlyCopySetAside { store: "default".to_owned(), directory };
        let only = said(1, &[Event::RollbackNoticed {}, aside, only]).unwrap();
        assert!(
            only.contains("keep its former files in d/node-2/set-aside-7, the only copy of default ("),
            "{only}"
        );
        assert!(
            only.contains("no other node has a copy of its records of siblings, with one replica;"),
            "{only}"
        );
        assert!(!only.contains("from the other nodes"), "{only}");
        let store = said(1, &[Event::StoreLost { store: "siblings".to_owned() }]).unwrap();
        assert!(store.contains("no other node has a copy of its records of siblings, with"), "{store}");
    }
}
