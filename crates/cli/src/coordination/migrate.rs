//! `tontine coordination migrate`: all documents to another service, while the nodes run.

use std::collections::BTreeSet;
use std::net::{TcpListener, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::coordination::CoordinationService;
use ::coordination::address::{Address, ServicePlace};
use ::coordination::documents;
use ::coordination::migrate::{Done, Ends, MigrateError, abort, migrate};
use model::{Cluster, Node, NodeId};
use serde_json::json;

use super::CoordinationArguments;
use crate::context::CliContext;
use crate::durations;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::count;

/// From where to where.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The nodes go along by themselves and remember the new address. No request fails.
If the command ends half way, run it again, or take everything back with --abort.

Example: from the directory of a cluster on one machine into ZooKeeper
  tontine coordination migrate --coordination dir:tontine-data/coordination --to zookeeper://127.0.0.1:2181/shop")]
pub struct MigrateArguments {
    /// The service that the documents go to: an empty chroot or directory. It is created if it does not exist.
    #[arg(long, value_name = "ADDRESS")]
    pub to: Address,
    /// Take back a move that has ended half way, as long as the new service is not in force.
    #[arg(long)]
    pub abort: bool,
    /// How long to wait until all nodes have gone along.
    #[arg(
        long,
        default_value = "1m",
        value_parser = durations::within(Duration::ZERO, Duration::from_secs(86_400)),
        value_name = "DURATION"
    )]
    pub patience: Duration,
    /// Which service they leave.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// How often the registrations are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Carries out the command.
pub(crate) async fn run(shared: &CliContext, arguments: MigrateArguments) -> Result<ExitCode, CliError> {
    let from = arguments.service.place()?;
    let to = ServicePlace { address: arguments.to.clone(), ..from.clone() };
    let (old, new) = open_both(&arguments, &from, &to).await?;
    if let Address::Directory(_) = &to.address
        && let Ok(Some(cluster)) = documents::read_cluster(&*old).await
    {
        refuse_other_machines(&cluster, &to)?;
    }
    let user = match (&to.address, &to.credentials) {
        (Address::ZooKeeper(_), Some(credentials)) => credentials.user().to_owned(),
        _ => String::new(),
    };
    let (from_address, to_address) = (from.portable(), to.portable());
    let ends = Ends { from: &*old, from_address, to: &*new, to_address, user };
    let result = match arguments.abort {
        true => abort(&ends).await.map(|()| None),
        false => migrate(&ends, &attempt()?).await.map(Some),
    };
    let done = match result {
        Ok(Some(done)) => done,
        Ok(None) => {
            let document = json!({ "coordination": ends.from_address });
            print(shared.format(), &document, || {
                format!(
                    "aborted; the documents are in {} as before, and nothing is in {}",
                    from.address, to.address
                )
            });
            return close(&*old, &*new).await;
        }
        Err(error) => {
            let refused = refused(&arguments, &error);
            // The lock goes with the session.
            let _ = close(&*old, &*new).await;
            return Err(refused);
        }
    };
    let missing = wait_for_nodes(&*new, &done, arguments.patience).await?;
    tell(shared, &ends, &done, &missing);
    close(&*old, &*new).await
}

type Session = std::sync::Arc<dyn CoordinationService>;

/// Sessions with both. What cannot be makes no directory and no chroot.
async fn open_both(
    arguments: &MigrateArguments,
    from: &ServicePlace,
    to: &ServicePlace,
) -> Result<(Session, Session), CliError> {
    let old = arguments.service.existing().await?;
    if from.address == to.address {
        return Err(CliError::Usage(format!(
            "the documents are in {} already; name another place with --to",
            to.address
        )));
    }
    // Reading what is not there fails here, before the other place is made.
    old.children(&::coordination::DocumentPath::root()).await?;
    if arguments.abort {
        let there =
            CoordinationArguments { coordination: Some(to.address.clone()), ..arguments.service.clone() };
        let new = there
            .existing()
            .await
            .map_err(|error| CliError::Other(format!("no move to {} can be aborted: {error}", to.address)))?;
        return Ok((old, new));
    }
    Ok((old, super::open(to, true).await?))
}

/// Something that no other attempt has.
fn attempt() -> Result<String, CliError> {
    let ports = runtime::Ports::os().map_err(CliError::io("cannot start the background thread"))?;
    Ok(format!("{:016x}", ports.entropy.next_u64()))
}

/// A directory is of use to the processes of this machine only.
fn refuse_other_machines(cluster: &Cluster, to: &ServicePlace) -> Result<(), CliError> {
    // Only an address of this machine can be listened to. A name may have some that are not used here.
    let is_here = |node: &Node| {
        let addresses = node.native.to_socket_addrs().into_iter().flatten();
        addresses.into_iter().any(|address| TcpListener::bind((address.ip(), 0)).is_ok())
    };
    match cluster.nodes.iter().find(|node| !is_here(node)) {
        None => Ok(()),
        Some(node) => Err(CliError::Other(format!(
            "{} serves at {}, which is not an address of this machine, and could not read the directory {}; move the \
             documents to a ZooKeeper ensemble with --to zookeeper://…",
            node.id, node.native, to.address
        ))),
    }
}

fn refused(arguments: &MigrateArguments, error: &MigrateError) -> CliError {
    let advice = match error.is_retryable() && !arguments.abort {
        true => {
            "; one of the two services is in force, so run the same command again to go on, or with --abort to take it back"
        }
        false => "",
    };
    CliError::Other(format!("{error}{advice}"))
}

/// Waits until every node that was registered at the old place is at the new one; says which are not.
async fn wait_for_nodes(
    new: &dyn CoordinationService,
    done: &Done,
    patience: Duration,
) -> Result<BTreeSet<NodeId>, CliError> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let here =
            documents::active_nodes_now(new).await.map_err(|error| CliError::Other(error.to_string()))?;
        let mut missing: BTreeSet<NodeId> = done.following.iter().map(|active| active.node.id).collect();
        missing.retain(|id| here.iter().all(|active| active.node.id != *id));
        if missing.is_empty() || began.elapsed() >= patience {
            return Ok(missing);
        }
        if !std::mem::replace(&mut told, true) {
            say!("the documents have moved; waiting for {} to follow", count(missing.len() as u64, "node"));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn tell(shared: &CliContext, ends: &Ends<'_>, done: &Done, missing: &BTreeSet<NodeId>) {
    let nodes: Vec<NodeId> = missing.iter().copied().collect();
    let document = json!({
        "cluster": done.this.name,
        "coordination": ends.to_address,
        "silent": nodes,
    });
    print(shared.format(), &document, || {
        let mut text = format!("the documents of cluster {} are in {}", done.this.name, ends.to_address);
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(NodeId::to_string).collect();
            text.push_str(&format!(
                "; {} not registered there yet: see its log, and whether it reaches that address",
                names.join(", ")
            ));
        }
        text.push_str(&format!(
            "\nfrom now on give --coordination {} to nodes and commands; nodes that still name {} find it, as long as that \
             one or their own data directory says where the documents went",
            ends.to_address, ends.from_address
        ));
        text.push_str(&format!(
            "\n  next: {} coordination show --coordination {}",
            program(),
            ends.to_address
        ));
        text
    });
}

async fn close(old: &dyn CoordinationService, new: &dyn CoordinationService) -> Result<ExitCode, CliError> {
    for session in [old, new] {
        let _ = session.close().await;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use control::bootstrap::Blueprint;
    use model::{Consistency, Zone};

    use super::*;

    /// Names of other machines passed, for only addresses were looked at.
    #[test]
    fn a_directory_is_refused_to_nodes_whose_names_are_not_of_this_machine() {
        let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let to = ServicePlace {
            address: "dir:documents".parse().unwrap(),
            session_timeout: Duration::from_secs(10),
            credentials: None,
        };
        for (native, is_here) in [
            ("127.0.0.1:7401", true),
            ("localhost:7401", true),
            ("192.0.2.1:7401", false),
            ("no-such-host.invalid:7401", false),
        ] {
            let node = Node::new(NodeId(1), Zone("a".to_owned()), native, None);
            let cluster = Blueprint::new("shop", vec![node], consistency).unwrap().cluster();
            assert_eq!(refuse_other_machines(&cluster, &to).is_ok(), is_here, "{native}");
        }
    }
}
