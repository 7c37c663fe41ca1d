//! `tontine cluster create`: a new cluster of the nodes that register, or of nodes on this machine that it names itself.
//!
//! **Architecture Invariant:** until the first document is written, nothing but the chroot and the document of ids is, so
//! a command that was ended can be given again, and `tontine coordination import` finds nothing that is strange to it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use control::bootstrap;
use coordination::CoordinationService;
use coordination::documents::{self, ActiveNode, PublishError};
use model::{Cluster, Node};
use runtime::Ports;
use serde_json::json;

use super::{is_passing, registered, shown, unread};
use crate::context::CliContext;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::shape::{self, ShapeArguments};
use crate::text::count;

/// Longest name of a cluster: it is a part of messages and of notes on disk.
const NAME_BYTES_MAX: usize = 100;
/// Pause after a question that the service did not answer.
const RETRY: Duration = Duration::from_secs(1);

/// What the cluster shall be, and where its documents are.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: three machines, with the documents in ZooKeeper
  tontine cluster create --coordination zookeeper://zk1:2181/shop --name shop     (on one of them; it waits)
  tontine serve --coordination zookeeper://zk1:2181/shop --data-dir DIR --listen HOST:7401 --insecure   (on each)

With --port-base it does not wait: it names nodes on this machine, and prints the commands that start them.")]
pub struct CreateArguments {
    /// The cluster's name.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Its nodes and numbers.
    #[command(flatten)]
    pub shape: ShapeArguments,
    /// Where its documents are to be. A chroot or directory that does not exist is created.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Carries it out.
pub(super) async fn run(shared: CliContext, arguments: CreateArguments) -> Result<ExitCode, CliError> {
    let is_here = arguments.shape.port_base.is_some();
    shape::check(&arguments.shape)?;
    if arguments.name.is_empty() || arguments.name.len() > NAME_BYTES_MAX {
        return Err(CliError::Usage(format!("--name takes 1 to {NAME_BYTES_MAX} bytes")));
    }
    if !is_here && arguments.shape.zones.is_some() {
        return Err(CliError::Usage(
            "each node says in which zone it is (tontine serve --zone); leave out --zones, or name nodes on this machine \
             with --port-base"
                .to_owned(),
        ));
    }
    let place = arguments.service.place_to_go_by()?;
    let mut service = crate::coordination::open(&place, true).await?;
    if let Some(found) = documents::read_cluster(&*service).await.map_err(unread)? {
        return Err(taken(&place.address, &found.name));
    }
    let blueprint = if is_here {
        let waiting = registered(&*service).await?.0;
        refuse_lost(&waiting, &place.address)?;
        if let Some(first) = waiting.first() {
            return Err(CliError::Other(format!(
                "{} is registered at {} and waits for a cluster; leave out --port-base to name the nodes that are \
                 registered",
                shown(first),
                place.address
            )));
        }
        shape::blueprint(&arguments.name, &arguments.shape)?
    } else {
        prepare(&*service, 0).await?;
        let nodes = gather(&mut service, arguments.shape.nodes_wanted() as usize, &place).await?;
        shape::blueprint_of(&arguments.name, nodes, &arguments.shape)?
    };
    if is_here {
        prepare(&*service, blueprint.nodes.iter().map(|node| node.id.0).max().unwrap_or(0)).await?;
    }
    let cluster = bootstrap::create(&*service, &blueprint).await.map_err(|error| match error {
        PublishError::Read(error) => unread(error),
        error => CliError::Other(error.to_string()),
    })?;
    if cluster != blueprint.cluster() {
        // Somebody was faster.
        return Err(taken(&place.address, &cluster.name));
    }
    // The document remains, however the session ends.
    let _ = service.close().await;
    tell(&shared, &cluster, &place, is_here);
    Ok(ExitCode::SUCCESS)
}

/// Prepares the service for nodes that take ids; up to `named`, whoever creates the cluster gives them.
pub(crate) async fn prepare(service: &dyn CoordinationService, named: u32) -> Result<(), CliError> {
    let ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
    documents::prepare_ids(service, named, ports.entropy.next_u64()).await.map_err(unread)?;
    Ok(())
}

/// Waits until this many nodes are registered, and takes those with the lowest ids.
async fn gather(
    service: &mut Arc<dyn CoordinationService>,
    wanted: usize,
    place: &coordination::address::ServicePlace,
) -> Result<Vec<Node>, CliError> {
    let mut told: Option<Vec<String>> = None;
    loop {
        let (found, watch) = match registered(&**service).await {
            Ok(found) => found,
            Err(error) if is_passing(&error) => {
                tokio::time::sleep(RETRY).await;
                if let Ok(opened) = service.reopen().await {
                    *service = opened;
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        refuse_lost(&found, &place.address)?;
        let names: Vec<String> = found.iter().map(shown).collect();
        if told.as_ref() != Some(&names) {
            say!("{}", progress(&found, wanted, place));
            told = Some(names);
        }
        if found.len() >= wanted {
            let nodes: Vec<Node> = found.into_iter().take(wanted).map(|active| active.node).collect();
            match nodes.iter().find_map(|node| documents::check_addresses(node, &nodes).err()) {
                None => return Ok(nodes),
                // The one that registered later goes elsewhere, or ends.
                Some(clash) => say!("waiting: {clash}"),
            }
        }
        // Whatever ends the wait, the list is read again.
        let _ = watch.fired().await;
    }
}

/// Refuses where a cluster runs whose documents are gone: its nodes would become those of another one, with the records
/// of the first.
fn refuse_lost(found: &[ActiveNode], address: &coordination::address::Address) -> Result<(), CliError> {
    let members: Vec<&ActiveNode> = found.iter().filter(|active| active.cluster.is_some()).collect();
    let Some(name) = members.first().and_then(|first| first.cluster.as_ref()) else { return Ok(()) };
    let shown: Vec<String> = members.iter().map(|active| shown(active)).collect();
    Err(CliError::Other(format!(
        "{address} has lost the documents of cluster {name:?}, whose members still run and register there: {}; choose \
         another chroot or directory for a new cluster, or bring the newest export back:\n  {} coordination import FILE \
         --coordination {}",
        shown.join(", "),
        program(),
        crate::holder::shell(&[address.to_string()])
    )))
}

fn progress(found: &[ActiveNode], wanted: usize, place: &coordination::address::ServicePlace) -> String {
    let mut text = format!("{} of {wanted} nodes are registered", found.len().min(wanted));
    for active in found.iter().take(wanted) {
        text.push_str(&format!("\n  {}", shown(active)));
    }
    if found.len() < wanted {
        text.push_str(&format!(
            "\nstart {} more, each with its own data directory:\n  {} serve --coordination {} --data-dir DIR{}",
            wanted - found.len(),
            program(),
            crate::holder::shell(&[place.address.to_string()]),
            match crate::addresses::is_of_one_machine(&place.address) {
                true => "",
                false => " --listen HOST:7401 --insecure",
            }
        ));
    }
    text
}

fn tell(shared: &CliContext, cluster: &Cluster, place: &coordination::address::ServicePlace, is_here: bool) {
    let document = json!({
        "cluster": cluster.name,
        "generation": cluster.generation.0,
        "coordination": place.address.to_string(),
        "nodes": cluster.nodes,
    });
    print(shared.format(), &document, || {
        let nodes = count(cluster.nodes.len() as u64, "node");
        let mut text = format!("created cluster {} of {nodes}", cluster.name);
        let address = crate::holder::shell(&[place.address.to_string()]);
        if !is_here {
            let native: Vec<&str> = cluster.nodes.iter().map(|node| node.native.as_str()).collect();
            text.push_str(&format!("; look at it:\n  {} status --connect {}", program(), native.join(",")));
            return text;
        }
        text.push_str("; start each of them, with its own data directory:");
        for node in &cluster.nodes {
            let (program, id) = (program(), node.id.0);
            text.push_str(&format!(
                "\n  {program} serve --id {id} --data-dir data-{id} --coordination {address}"
            ));
        }
        text
    });
}

fn taken(address: &coordination::address::Address, name: &str) -> CliError {
    CliError::Other(format!(
        "{address} holds cluster {name:?} already; choose another chroot or directory for a new cluster"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_cluster_whose_documents_are_gone_are_no_nodes_of_a_new_one() {
        let address = "zookeeper://zk1:2181/shop".parse().unwrap();
        let node =
            |id: u32| Node::new(model::NodeId(id), model::Zone("a".to_owned()), format!("h{id}:1"), None);
        let waits = ActiveNode::new(node(4), 7);
        let member = ActiveNode { cluster: Some("shop".to_owned()), ..ActiveNode::new(node(1), 1) };
        refuse_lost(std::slice::from_ref(&waits), &address).unwrap();
        let said = refuse_lost(&[member, waits], &address).unwrap_err().to_string();
        assert!(said.contains(
            "the documents of cluster \"shop\", whose members still run and register there: n1 at h1:1"
        ));
        assert!(!said.contains("n4"), "{said}");
        assert!(
            said.ends_with("coordination import FILE --coordination zookeeper://zk1:2181/shop"),
            "{said}"
        );
    }

    #[test]
    fn the_command_that_is_printed_asks_for_an_address_where_nodes_are_on_many_machines() {
        let place = |address: &str| coordination::address::ServicePlace {
            address: address.parse().unwrap(),
            session_timeout: Duration::from_secs(10),
            credentials: None,
        };
        let shared = progress(&[], 3, &place("zookeeper://zk1:2181/shop"));
        assert!(
            shared.ends_with(
                "--coordination zookeeper://zk1:2181/shop --data-dir DIR --listen HOST:7401 --insecure"
            ),
            "{shared}"
        );
        let here = progress(&[], 3, &place("dir:documents"));
        assert!(here.ends_with("--data-dir DIR"), "{here}");
    }
}
