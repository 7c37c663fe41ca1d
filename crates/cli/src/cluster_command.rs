//! `tontine cluster`: the first document of a cluster.

use std::process::ExitCode;

use control::bootstrap;
use coordination::documents::{self, PublishError, ReadError};
use serde_json::json;

use crate::coordination::CoordinationArguments;
use crate::dev::{ShapeArguments, creation};
use crate::failure::CliError;
use crate::output::{count, print, program};
use crate::shared::Shared;

/// What can be done with clusters.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ClusterCommand {
    /// Write the first document of a new cluster, whose nodes all run on this machine.
    Create(CreateArguments),
}

/// What the cluster shall be, and where its documents are.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: three nodes on this machine, with their documents in ZooKeeper
  tontine cluster create --coordination zookeeper://127.0.0.1:2181/shop --name shop
  tontine node --id 1 --cluster shop --data-dir data-1 --coordination zookeeper://127.0.0.1:2181/shop")]
pub struct CreateArguments {
    /// The cluster's name.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Its nodes and numbers.
    #[command(flatten)]
    pub shape: ShapeArguments,
    /// Where its documents are to be. A chroot that does not exist is created.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Carries out a command.
pub(crate) async fn run(shared: Shared, command: ClusterCommand) -> Result<ExitCode, CliError> {
    let ClusterCommand::Create(arguments) = command;
    creation::check(&arguments.shape)?;
    if arguments.name.is_empty() || arguments.name.len() > NAME_BYTES_MAX {
        return Err(CliError::Usage(format!("--name takes 1 to {NAME_BYTES_MAX} bytes")));
    }
    let place = arguments.service.place()?;
    let service = crate::coordination::open(&place, true).await?;
    if let Some(found) = documents::read_cluster(&*service).await.map_err(unread)? {
        return Err(taken(&place.address, &found.name));
    }
    let blueprint = creation::blueprint(&arguments.name, &arguments.shape)?;
    let cluster = bootstrap::create(&*service, &blueprint).await.map_err(|error| match error {
        PublishError::Read(error) => unread(error),
        error => CliError::Other(error.to_string()),
    })?;
    if cluster != blueprint.cluster() {
        // Somebody was faster.
        return Err(taken(&place.address, &cluster.name));
    }
    // The document stands, however the session ends.
    let _ = service.close().await;
    let address = crate::holder::shell(&[place.address.to_string()]);
    let document = json!({
        "cluster": cluster.name,
        "generation": cluster.generation.0,
        "coordination": place.address.to_string(),
        "nodes": cluster.nodes,
    });
    print(shared.format(), &document, || {
        let mut text =
            format!("created cluster {} of {}", cluster.name, count(cluster.nodes.len() as u64, "node"));
        text.push_str("; start each of them, with a data directory of its own:");
        for node in &cluster.nodes {
            let (program, name) = (program(), crate::holder::shell(std::slice::from_ref(&cluster.name)));
            text.push_str(&format!(
                "\n  {program} node --id {} --cluster {name} --data-dir data-{} --coordination {address}",
                node.id.0, node.id.0
            ));
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}

/// Longest name of a cluster: it is a part of messages and of notes on disk.
const NAME_BYTES_MAX: usize = 100;

fn unread(error: ReadError) -> CliError {
    match error {
        ReadError::Coordination(error) => error.into(),
        error => CliError::Other(error.to_string()),
    }
}

fn taken(address: &coordination::address::Address, name: &str) -> CliError {
    CliError::Other(format!(
        "{address} holds cluster {name:?} already; choose another chroot or directory for a new cluster"
    ))
}
