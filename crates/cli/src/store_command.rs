//! `tontine store`: the stores of a cluster, and one more while it runs.

mod advise;
mod theta;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::{Client, ClientError};
use model::limits::ARTIFACTS_KEPT_MAX;
use model::order::{Order, OrderOutcome};
use model::placement::THETA_MAX;
use model::plan::{Consent, Wish};
use model::{
    Cluster, Consistency, FallbackOrder, KeyPattern, Node, Placement, PlacementError, ReadOnlyStore, Reads,
    Resolver, Store, StoreName, Windows,
};
use protocol::report::Parts;
use serde_json::{Value as Json, json};

use advise::AdviseStoreArguments;

use crate::artifact;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::orders;
use crate::output::{print, program};
use crate::plan_command;
use crate::ready::{read_only_json, stores_json};
use crate::shape::parse_consistency;
use crate::text::{count, size, table};

/// How long a new store may take until all nodes that answer have opened it.
const OPENED_TIME_MAX: Duration = Duration::from_secs(10);

/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What can be done with stores.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum StoreCommand {
    /// List the stores and their settings.
    List,
    /// Create a store while the cluster runs. Only those of its settings can be changed later that `store set` names.
    Create(CreateStoreArguments),
    /// Change N, R and W of a store while it is used, and wait until that is done. It goes on if this command is stopped.
    /// Of a read-only store, change how many artifacts it keeps.
    Set(SetStoreArguments),
    /// Say between which bounds the windows of a store may lie, by what nodes measured. Exits with 1 if that cannot be known
    /// yet, or the store's own theta is outside.
    Advise(AdviseStoreArguments),
}

/// Which store, and its next numbers.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: a third replica of each key, of which two must answer
  tontine store set carts --consistency 3,2,2
How far that is, and how to take it back: tontine plan show, tontine plan abort

Example: a read-only store keeps the three artifacts that it served last, beside the served one
  tontine store set words --artifacts-kept 3")]
pub struct SetStoreArguments {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The next N, R and W, for example `3,2,2`.
    #[arg(long, value_parser = parse_consistency, value_name = "N,R,W", required_unless_present = "artifacts_kept")]
    pub consistency: Option<Consistency>,
    /// How many artifacts a read-only store keeps beside the served one, 1 to 6, from the next swap on.
    #[arg(long, value_name = "COUNT", conflicts_with = "consistency",
        value_parser = clap::value_parser!(u8).range(1..=i64::from(ARTIFACTS_KEPT_MAX)))]
    pub artifacts_kept: Option<u8>,
    /// Show what would be done, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Accept that replicas lie in fewer zones than they could.
    #[arg(long)]
    pub accept_fewer_zones: bool,
    /// Accept that a get may miss an acknowledged write, because R + W is not above N any more.
    #[arg(long)]
    pub accept_weaker: bool,
    /// Do not wait until it is done.
    #[arg(long)]
    pub no_wait: bool,
}

/// The name and settings of a new store.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: carts, whose concurrent versions the application merges
  tontine store create carts --resolver siblings
  tontine put cart:7 milk -s carts")]
pub struct CreateStoreArguments {
    /// Its name: 1 to 64 of a-z 0-9 _ -, starting with a letter.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// N, R and W, for example `3,2,2`: the replicas of each key, how many must answer a get, and how many must
    /// acknowledge a put. By default as in the store `default`.
    #[arg(long, value_parser = parse_consistency, value_name = "N,R,W")]
    pub consistency: Option<Consistency>,
    /// Serve artifacts instead of taking writes; of N, R and W it has only N.
    #[arg(long, conflicts_with_all = ["resolver", "reads", "strict", "fallbacks", "placement", "value_bytes_max", "siblings_max"])]
    pub read_only: bool,
    /// How many artifacts a read-only store keeps beside the served one, 1 to 6; by default 1.
    #[arg(long, value_name = "COUNT", requires = "read_only",
        value_parser = clap::value_parser!(u8).range(1..=i64::from(ARTIFACTS_KEPT_MAX)))]
    pub artifacts_kept: Option<u8>,
    /// What becomes of concurrent versions of a key: the last write wins, or all are kept for the application to merge.
    #[arg(long, value_enum, default_value = "last-write-wins", value_name = "RESOLVER")]
    pub resolver: ResolverArgument,
    /// Whether a get repairs differing replicas after its answer (fast) or before it (monotonic).
    #[arg(long, value_enum, default_value = "fast", value_name = "READS")]
    pub reads: ReadsArgument,
    /// Refuse a write that needs a fallback in place of a replica that is down, so that no get misses it.
    #[arg(long)]
    pub strict: bool,
    /// Which nodes stand in for replicas that are down: the next ones on the ring, any nodes, or those in the same zone.
    #[arg(long, value_enum, default_value = "consistent", value_name = "ORDER")]
    pub fallbacks: FallbacksArgument,
    /// Where keys lie: by their hash, or in windows, which keep entries of a feed that follow each other at one node.
    #[arg(long, value_enum, default_value = "hash", value_name = "PLACEMENT")]
    pub placement: PlacementArgument,
    /// Sequence numbers of a window. One node takes the puts of a window, so each delays puts: about 64 is best.
    #[arg(long, value_name = "COUNT", requires = "key", default_value_if("placement", "windows", "64"),
        value_parser = clap::value_parser!(u64).range(1..=THETA_MAX))]
    pub theta: Option<u64>,
    /// What keys look like, with --placement windows: `feed:{group}:{sequence}`, or without a group.
    #[arg(long, value_name = "PATTERN", required_if_eq("placement", "windows"))]
    pub key: Option<String>,
    /// Largest value in bytes, at most 16777216.
    #[arg(long, default_value_t = model::limits::VALUE_BYTES_MAX, value_name = "BYTES")]
    pub value_bytes_max: usize,
    /// Most concurrent versions of one key, at most 64.
    #[arg(long, default_value_t = model::limits::SIBLINGS_MAX, value_name = "COUNT")]
    pub siblings_max: usize,
}

/// [`Resolver`] on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ResolverArgument {
    /// The greatest timestamp wins.
    LastWriteWins,
    /// All are kept.
    Siblings,
}

/// [`Reads`] on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ReadsArgument {
    /// Repair after the answer.
    Fast,
    /// Repair before the answer: reads never go backwards.
    Monotonic,
}

/// [`FallbackOrder`] on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum FallbacksArgument {
    /// The next nodes on the ring.
    Consistent,
    /// All other nodes, in a different order for each key.
    Any,
    /// Nodes in the lost replica's zone first.
    Proximity,
}

/// [`Placement`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PlacementArgument {
    /// By the hash of each key.
    Hash,
    /// In windows of a feed.
    Windows,
}

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: StoreCommand) -> Result<ExitCode, CliError> {
    match command {
        StoreCommand::Set(arguments) => set(&shared, arguments).await,
        StoreCommand::Advise(arguments) => advise::run(&shared, &arguments).await,
        StoreCommand::List => {
            let client = shared.client().await?;
            let cluster = client.cluster();
            let document = json!({ "generation": cluster.generation.0, "stores": stores_json(&cluster.stores),
                "read_only_stores": read_only_json(&cluster.read_only) });
            print(shared.format(), &document, || listed(&cluster.stores, &cluster.read_only));
            Ok(ExitCode::SUCCESS)
        }
        StoreCommand::Create(arguments) => create(&shared, &shared.client().await?, &arguments).await,
    }
}

async fn set(shared: &CliContext, arguments: SetStoreArguments) -> Result<ExitCode, CliError> {
    let SetStoreArguments { name: store, consistency, artifacts_kept, .. } = arguments;
    if let Some(kept) = artifacts_kept {
        return artifact::verbs::keep(shared, &store, kept, arguments.dry_run).await;
    }
    let numbers = consistency.expect("it is required without the other one");
    let consent = Consent { fewer_zones: arguments.accept_fewer_zones, weaker: arguments.accept_weaker };
    if arguments.dry_run {
        let wish = Wish::Numbers { store, numbers };
        return plan_command::show_dry(shared, wish, consent).await;
    }
    let order = Order::Renumber { store, numbers, consent };
    plan_command::order_and_wait(shared, order, arguments.no_wait).await
}

/// The store as the arguments ask for it.
fn wanted(client: &Client, arguments: &CreateStoreArguments) -> Result<Store, CliError> {
    let name = StoreName::new(arguments.name.as_str()).map_err(|error| CliError::Usage(error.to_string()))?;
    let cluster = client.cluster();
    let as_others = cluster.store("default").or(cluster.stores.first()).map(|store| store.consistency);
    let consistency = arguments.consistency.or(as_others).ok_or_else(|| {
        CliError::Usage("the cluster has no store to take N, R and W from; give --consistency".to_owned())
    })?;
    let store = Store::new(name, consistency).map_err(|error| CliError::Usage(error.to_string()))?;
    Ok(Store {
        resolver: match arguments.resolver {
            ResolverArgument::LastWriteWins => Resolver::LastWriteWins,
            ResolverArgument::Siblings => Resolver::Siblings,
        },
        reads: match arguments.reads {
            ReadsArgument::Fast => Reads::Fast,
            ReadsArgument::Monotonic => Reads::Monotonic,
        },
        sloppy: !arguments.strict,
        fallbacks: match arguments.fallbacks {
            FallbacksArgument::Consistent => FallbackOrder::Consistent,
            FallbacksArgument::Any => FallbackOrder::Any,
            FallbacksArgument::Proximity => FallbackOrder::Proximity,
        },
        placement: placement(&cluster, arguments)?,
        value_bytes_max: arguments.value_bytes_max,
        siblings_max: arguments.siblings_max,
        ..store
    })
}

/// Where its keys lie.
fn placement(cluster: &Cluster, arguments: &CreateStoreArguments) -> Result<Placement, CliError> {
    let usage = |error: PlacementError| CliError::Usage(error.to_string());
    match (arguments.placement, &arguments.key, arguments.theta) {
        (PlacementArgument::Windows, Some(key), Some(theta)) => {
            let (key, buckets) = (KeyPattern::new(key).map_err(usage)?, cluster.buckets);
            let placement = Placement::Windows(Windows { theta, key, buckets, unknown: model::Unknown::new() });
            placement.check(buckets).map_err(usage)?;
            Ok(placement)
        }
        (PlacementArgument::Hash, None, None) => Ok(Placement::Hash),
        _ => Err(CliError::Usage(
            "--theta and --key belong to --placement windows, which needs --key, such as --key 'feed:{group}:{sequence}'"
                .to_owned(),
        )),
    }
}

async fn create(
    shared: &CliContext,
    client: &Client,
    arguments: &CreateStoreArguments,
) -> Result<ExitCode, CliError> {
    let store = wanted(client, arguments)?;
    if arguments.read_only {
        let (replicas, kept) = (store.consistency.replicas, arguments.artifacts_kept);
        return artifact::verbs::create(shared, client, store.name, replicas, kept).await;
    }
    let order = Order::create_store(store.clone());
    let ordered = orders::give(client, &order).await.map_err(|error| in_doubt(&store.name, error))?;
    let cluster = match ordered.answer {
        Some(OrderOutcome::Done { .. }) => client.cluster(),
        Some(answer) => return Err(orders::refused(client, &order, &answer).await),
        None => {
            let detail = format!("order {} has no answer yet", ordered.number);
            return Err(in_doubt(&store.name, ClientError::Indeterminate { detail }));
        }
    };
    let behind = opened(client, &cluster.nodes, &store.name).await;
    let document = json!({
        "store": store.name,
        "generation": cluster.generation.0,
        "stores": stores_json(std::slice::from_ref(&store)),
        "nodes": cluster.nodes.iter().map(|node| {
            json!({ "node": node.id, "complete": !behind.contains(&node) })
        }).collect::<Json>(),
    });
    print(shared.format(), &document, || {
        let name = store.name.as_str();
        let mut text = format!("created store {name}: {}\n", settings(&store));
        if !behind.is_empty() {
            let names: Vec<String> = behind.iter().map(|node| node.id.to_string()).collect();
            let (verb, pronoun) = if behind.len() == 1 { ("has", "it") } else { ("have", "they") };
            text.push_str(&format!(
                "{} {verb} not opened it yet; {pronoun} will when {pronoun} can be reached again\n",
                names.join(", ")
            ));
        }
        text.push_str(&format!("write to it with `{} put KEY VALUE -s {name}`", program()));
        text
    });
    Ok(ExitCode::SUCCESS)
}

/// What to do when nobody knows whether a store was created: there is no key that would tell.
pub(crate) fn in_doubt(store: &StoreName, error: ClientError) -> CliError {
    match error.is_indeterminate() {
        true => CliError::Unanswered(format!(
            "store {store} may have been created: {error}; look with `{program} store list`, and if it is not there, create it \
             again",
            program = program()
        )),
        false => error.into(),
    }
}

/// Waits until the nodes have opened a store, and returns those that have not within [`OPENED_TIME_MAX`].
async fn opened<'a>(client: &Client, nodes: &'a [Node], store: &StoreName) -> Vec<&'a Node> {
    let deadline = Instant::now() + OPENED_TIME_MAX;
    let mut behind: Vec<&Node> = nodes.iter().collect();
    loop {
        let looks = behind.iter().map(|node| has_opened(client, node, store));
        let found = futures_util::future::join_all(looks).await;
        let reached = found.iter().any(Option::is_some);
        let mut found = found.into_iter();
        behind.retain(|_| found.next().flatten() != Some(true));
        // Nodes that do not answer are not waited for.
        if behind.is_empty() || !reached || Instant::now() > deadline {
            return behind;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether a node has opened a store; `None` when it does not answer.
async fn has_opened(client: &Client, node: &Node, store: &StoreName) -> Option<bool> {
    let report = client.report(node.id, Parts::STATUS).await.ok()?;
    Some(report.status?.stores.iter().any(|open| open.store == *store))
}

fn settings(store: &Store) -> String {
    let Consistency { replicas, reads_required, writes_required } = store.consistency;
    let resolver = match store.resolver {
        Resolver::LastWriteWins => "the last write wins",
        Resolver::Siblings => "concurrent versions are kept",
    };
    let lie = match &store.placement {
        Placement::Hash => String::new(),
        Placement::Windows(windows) => format!(", keys {} in windows of {}", windows.key, windows.theta),
    };
    format!("N={replicas} R={reads_required} W={writes_required}, {resolver}{lie}")
}

fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|json| json.as_str().map(str::to_owned)).unwrap_or_default()
}

fn numbers(Consistency { replicas, reads_required, writes_required }: Consistency) -> String {
    format!("{replicas},{reads_required},{writes_required}")
}

fn listed(stores: &[Store], read_only: &[ReadOnlyStore]) -> String {
    let heading = [
        "store",
        "N,R,W",
        "resolver",
        "reads",
        "sloppy",
        "fallbacks",
        "placement",
        "largest value",
        "siblings",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for store in stores {
        let changes = store
            .coming
            .as_ref()
            .map(|coming| format!(" ({} to {})", coming.step, numbers(coming.consistency)));
        rows.push(vec![
            store.name.to_string(),
            format!("{}{}", numbers(store.consistency), changes.unwrap_or_default()),
            word(&store.resolver),
            word(&store.reads),
            if store.sloppy { "yes" } else { "no" }.to_owned(),
            word(&store.fallbacks),
            match &store.placement {
                Placement::Hash => "hash".to_owned(),
                Placement::Windows(windows) => format!("windows of {}: {}", windows.theta, windows.key),
            },
            size(store.value_bytes_max as u64),
            store.siblings_max.to_string(),
        ]);
    }
    for store in read_only {
        let served =
            store.served().map_or("nothing yet".to_owned(), |served| format!("artifact {}", served.number));
        let numbers = format!("{},1,-", store.replicas);
        let mut row = vec![store.name.to_string(), numbers, format!("read-only: {served}")];
        row.resize(heading.len(), "-".to_owned());
        rows.push(row);
    }
    let all = count((stores.len() + read_only.len()) as u64, "store");
    format!("{}{all}; create another one with `{} store create NAME`", table(&rows), program())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_may_have_been_created_is_looked_for_and_no_key_is_got() {
        let store = StoreName::new("carts").expect("well formed");
        let doubt = in_doubt(&store, ClientError::Indeterminate { detail: "cut".to_owned() });
        assert_eq!((doubt.exit_code(), doubt.json()["error"]["next"].is_null()), (3, true));
        assert!(doubt.to_string().contains("store list"), "{doubt}");
    }
}
