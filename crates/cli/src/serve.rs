//! `tontine serve`: a node that takes its own id, and waits until its cluster names it.
//!
//! ```text
//! data directory      the node
//! empty               takes an id, keeps it, registers, waits to be named, serves
//! with an id          registers, waits to be named, serves
//! of a node           serves, also at another address
//! empty, with --id    serves as that member, whose disk is lost, and refills
//! ```
//!
//! Must never: take an id, or make a directory, before everything that can be checked was found in order.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::coordination::address::{Address, Places, ServicePlace};
use ::coordination::documents::{self, ActiveNode, ReadError};
use ::coordination::{CoordinationError, CoordinationService};
use model::{Cluster, Node, NodeId, Zone};
use node::waiting::{Applicant, Waits};
use node::{Directory, GivenId, Owner, StartError};
use parking_lot::Mutex;
use runtime::disk::os::OsDisk;
use runtime::network::tls::Tls;
use runtime::{Disk, Ports};

use crate::addresses::{AddressArguments, Addresses};
use crate::context::{CliContext, block_on};
use crate::coordination::{CoordinationArguments, DocumentsFound};
use crate::failure::CliError;
use crate::headmaster::Beside;
use crate::node_settings::NodeSettings;
use crate::output::{print, program};
use crate::server::{NodeSpec, RunningNode};
use crate::stop_signals::StopSignals;
use crate::tls_settings::{self, CertificateArguments, TlsMode};

/// Longest name of a zone: it is a part of many documents.
const ZONE_BYTES_MAX: usize = 64;
/// The zone of a node that is told none.
const ZONE_DEFAULT: &str = "zone-1";
/// How often a node says again for what it waits.
const REMINDER: Duration = Duration::from_secs(600);

/// Runs this machine's node of a cluster until it is told to stop.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine serve --coordination zookeeper://zk1:2181,zk2:2181/shop --data-dir /var/lib/tontine \\
      --listen 10.0.0.1:7401 --zone rack-1 --insecure
  tontine serve --coordination dir:tontine-data/coordination --data-dir tontine-data/node-4

The first nodes of a cluster are named by `tontine cluster create`, later ones by `tontine node add`.
Started again with the same directory, it is the same node, also at another address. If that directory is lost, start \
it with --id and an empty one.")]
pub struct ServeArguments {
    /// Which coordination service.
    #[command(flatten)]
    pub service: CoordinationArguments,
    /// Where the node keeps its data, and who it is. It is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Be this member of the cluster again, such as 3 or n3, with an empty directory: its disk is lost. The node fetches
    /// its records from the other replicas.
    #[arg(long, value_name = "NODE", value_parser = crate::orders::parse_node)]
    pub id: Option<NodeId>,
    /// Where the node is.
    #[command(flatten)]
    pub addresses: AddressArguments,
    /// Failure domain of a new node: nodes of one zone may fail together, so replicas are spread over zones. `zone-1` by
    /// default. A node stays in its zone.
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Start no headmaster beside the node.
    #[arg(long)]
    pub no_headmaster: bool,
    /// Log to this file instead of standard error. The file is rotated at 16 MiB, and four older ones are kept.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Write the audit log to this file instead of audit.jsonl in the data directory, or beside the file of --log-file.
    #[arg(long, value_name = "FILE", conflicts_with = "no_audit_log")]
    pub audit_log: Option<PathBuf>,
    /// Stop when the standard input ends, as for a child whose parent is gone.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
    /// Whether the node takes connections with TLS only, or also those without. Without this, it speaks no TLS.
    #[arg(long, value_enum, value_name = "MODE")]
    pub tls: Option<TlsMode>,
    /// The node's certificate.
    #[command(flatten)]
    pub certificate: CertificateArguments,
    /// How the node runs.
    #[command(flatten)]
    pub settings: NodeSettings,
}

impl ServeArguments {
    /// Where the audit log goes, if anywhere.
    fn audit_file(&self) -> Option<PathBuf> {
        let elsewhere = || crate::audit::file_of(self.log_file.as_deref(), &self.data_dir);
        (!self.settings.no_audit_log).then(|| self.audit_log.clone().unwrap_or_else(elsewhere))
    }
}

/// Runs the node until it is told to stop.
pub(crate) fn run(shared: &CliContext, mut arguments: ServeArguments) -> Result<ExitCode, CliError> {
    check_zone(arguments.zone.as_deref())?;
    crate::holder::refuse_file(&arguments.data_dir)?;
    crate::file_system::refuse_network("--data-dir", &arguments.data_dir)?;
    let password = arguments.settings.checked_password()?;
    let tls = arguments.certificate.read(shared.tls_authority.as_deref())?;
    tls_settings::safety(arguments.tls, tls.as_ref())?;
    arguments.addresses.is_called_with_tls = arguments.tls == Some(TlsMode::Require);
    let started = Box::pin(start(shared, arguments, (password, tls)));
    block_on(async move { started.await.map_err(CliError::of_a_start) })
}

/// What a node asks of Redis clients, and how it proves what it is.
type Credentials = (Option<String>, Option<Arc<Tls>>);

async fn start(
    shared: &CliContext,
    arguments: ServeArguments,
    given: Credentials,
) -> Result<ExitCode, CliError> {
    let mut signals = StopSignals::listen()?;
    let mut service = None;
    let start = begin(&arguments, given, &mut service);
    let started = signals.unless_requested(arguments.stop_with_stdin, start).await.transpose();
    if !matches!(started, Ok(Some(_)))
        && let Some(service) = &service
    {
        // The registration would stay as long as the session lives.
        crate::coordination::leave(&*service.session).await;
    }
    let (Some((running, node)), Some(service)) = (started?, service) else { return Ok(ExitCode::SUCCESS) };
    print(shared.format(), &crate::ready::node_json(&node, Some(std::process::id())), || {
        crate::ready::ready_line(&node)
    });
    let beside = (!arguments.no_headmaster).then(|| {
        let file = arguments.log_file.as_ref().map(|file| file.with_extension("headmaster.log"));
        let coordination = Some(service.place.address.clone());
        let there = CoordinationArguments { coordination, ..arguments.service.clone() };
        let certificate = arguments.certificate.as_arguments(shared.tls_authority.as_deref());
        Beside::start(&there, certificate, arguments.settings.log, file)
    });
    signals.requested(arguments.stop_with_stdin).await;
    if let Some(beside) = beside {
        beside.stop().await;
    }
    running.stop().await?;
    Ok(ExitCode::SUCCESS)
}

/// Finds the documents, waits until they name the node, and starts it. What it opens is in `opened`, however it ends.
async fn begin(
    arguments: &ServeArguments,
    (password, tls): Credentials,
    opened: &mut Option<Service>,
) -> Result<(RunningNode, Node), CliError> {
    let place = arguments.service.place_to_go_by()?;
    let service = opened.insert(Service::look(place, &arguments.data_dir).await?);
    // Whoever reaches a node of a closed cluster needs a secret or a certificate, or may do little.
    let mut arguments = arguments.clone();
    arguments.addresses.insecure |= service.cluster.as_ref().is_some_and(|cluster| !cluster.is_anyones());
    let arguments = &arguments;
    let named = named(arguments, service).await?;
    let settings = &arguments.settings;
    let spec = NodeSpec {
        id: named.node.id,
        cluster: named.cluster.name.clone(),
        data_dir: arguments.data_dir.clone(),
        coordination: service.place.clone(),
        engine: settings.engine,
        durability: settings.durability,
        workers: settings.workers_each(1),
        password,
        no_password: settings.no_password,
        http_names: settings.http_name.clone(),
        limits: settings.limits,
        hedge_after: settings.hedge_after,
        repair_period: settings.repair_period,
        allow_sources: settings.allow_sources.clone(),
        addresses: named.addresses,
        insecure: arguments.addresses.insecure,
        tls_mode: arguments.tls,
        tls,
        audit_file: arguments.audit_file(),
        is_of_dev: arguments.stop_with_stdin,
    };
    let running = RunningNode::start(&spec, &named.cluster, service.session.clone()).await?;
    if let Address::Directory(directory) = &spec.coordination.address {
        crate::holder::note_launch(directory, spec.id, spec.password.is_some());
    }
    Ok((running, named.node))
}

/// The copy of the cluster document in a node's data directory; nothing is made where there is none.
fn own_copy(data_dir: &Path) -> Option<Cluster> {
    data_dir.is_dir().then(|| OsDisk::open(data_dir).ok()).flatten().and_then(|disk| node::own_copy(&disk))
}

fn check_zone(zone: Option<&str>) -> Result<(), CliError> {
    let Some(zone) = zone else { return Ok(()) };
    let is_letter = |letter: char| !letter.is_control() && !letter.is_whitespace();
    match (1..=ZONE_BYTES_MAX).contains(&zone.len()) && zone.chars().all(is_letter) {
        true => Ok(()),
        false => Err(CliError::Usage(format!(
            "--zone takes a name of 1 to {ZONE_BYTES_MAX} bytes without spaces, and this one has {} bytes",
            zone.len()
        ))),
    }
}

/// What the coordination service holds, and this machine's copy of it.
struct Service {
    session: Arc<dyn CoordinationService>,
    place: ServicePlace,
    /// The cluster document, or the directory's copy while the service is away.
    cluster: Option<Cluster>,
    /// Nodes that are registered; nobody while the service is away.
    active: Vec<ActiveNode>,
    /// By which cluster ids are given there.
    origin: Option<String>,
}

impl Service {
    /// Reads what a start depends on. Changes nothing.
    async fn look(named: ServicePlace, data_dir: &Path) -> Result<Service, CliError> {
        let no_cluster = |place: &ServicePlace| {
            CliError::Other(format!(
                "{} holds no cluster, and none is being created there; run `tontine cluster create` first, or correct the \
                 address",
                place.address
            ))
            // `tontine cluster create` may follow.
            .later()
        };
        let found = crate::coordination::find_documents(named.clone(), data_dir).await?;
        let found = found.ok_or_else(|| no_cluster(&named))?;
        found.correct(&named.address);
        let DocumentsFound { place, session, cluster } = found;
        let cluster = match cluster {
            // A service without a cluster is the wrong one, whatever the copy says.
            Ok(None) => None,
            Ok(served) => node::newest_document(served, own_copy(data_dir)),
            Err(ReadError::Coordination(CoordinationError::Unavailable { reason })) => {
                // The node's own copy says who it is. Everything else is for the node to settle.
                let copy = own_copy(data_dir).ok_or_else(|| {
                    CliError::Other(format!(
                        "cannot find the cluster document: {reason}; and {} holds no copy of it; start the node again when \
                         the coordination service answers",
                        data_dir.display()
                    ))
                    .later()
                })?;
                let cluster = Some(copy);
                return Ok(Service { session, place, cluster, active: Vec::new(), origin: None });
            }
            Err(error) => return Err(unread(error)),
        };
        let ids = documents::read_ids(&*session).await.map_err(unread)?;
        if cluster.is_none() && ids.is_none() {
            return Err(no_cluster(&place));
        }
        let active = documents::active_nodes(&*session).await.map_err(unread)?.0;
        let origin = ids.map(|ids| ids.origin);
        Ok(Service { session, place, cluster, active, origin })
    }

    /// Reads again who is registered, and which nodes the cluster has.
    async fn look_again(&mut self) -> Result<(), CliError> {
        self.active = documents::active_nodes_now(&*self.session).await.map_err(unread)?;
        self.cluster = documents::read_cluster(&*self.session).await.map_err(unread)?;
        Ok(())
    }

    /// Everybody who has, or is about to have, an address in this cluster.
    fn others(&self) -> Vec<Node> {
        let named = self.cluster.iter().flat_map(|cluster| &cluster.nodes);
        // A registration is newer than the document.
        let is_registered = |node: &&Node| self.active.iter().any(|active| active.node.id == node.id);
        let rest = named.filter(|node| !is_registered(node)).cloned();
        self.active.iter().map(|active| active.node.clone()).chain(rest).collect()
    }
}

fn unread(error: ReadError) -> CliError {
    match error {
        ReadError::Coordination(error) => error.into(),
        ReadError::Malformed { ref path, .. } => CliError::Other(format!(
            "{error}; correct it in the coordination service, or put the last good one there; to see it, run `tontine \
             coordination show {path}`"
        )),
        error => CliError::Other(error.to_string()),
    }
}

/// A node that its cluster document names.
struct Named {
    node: Node,
    cluster: Cluster,
    addresses: Addresses,
}

/// Finds out who the node is, and waits until its cluster names it.
async fn named(arguments: &ServeArguments, service: &mut Service) -> Result<Named, CliError> {
    let owner = owner(&arguments.data_dir)?;
    let known = match (&owner, arguments.id) {
        (Owner::Node { node, .. } | Owner::Given(GivenId { node, .. }), Some(id)) if *node != id => {
            return Err(CliError::Usage(format!(
                "the data directory {} belongs to {node}, and --id says {id}; leave --id out, or choose an empty directory",
                arguments.data_dir.display()
            )));
        }
        (Owner::Node { cluster: name, node }, _) => Some(known(service, arguments, name, *node)?),
        (Owner::Nobody, Some(id)) => Some(lost(service, arguments, id)?),
        (Owner::Given(_), _) | (Owner::Nobody, None) => None,
    };
    if let (Owner::Given(given), Some(origin)) = (&owner, &service.origin)
        && given.origin != *origin
    {
        return Err(CliError::Other(format!(
            "the data directory {} was given the id {} by another cluster than the one of {}; correct the address of the \
             coordination service, or choose an empty directory",
            arguments.data_dir.display(),
            given.node,
            service.place.address
        )));
    }
    let mut others = service.others();
    if let Owner::Given(given) = &owner {
        others.retain(|other| other.id != given.node);
    }
    if known.is_none() {
        arguments.addresses.named_for(&service.place.address)?;
    }
    if matches!(owner, Owner::Nobody) && known.is_none() {
        refuse_lost(service, arguments)?;
    }
    let addresses = arguments.addresses.settle(known, &others)?;
    probe(&addresses, arguments.stop_with_stdin)?;
    if let Some(entry) = known {
        let node = placed(entry.id, entry.zone.clone(), &addresses);
        let cluster = service.cluster.clone().expect("it names the node");
        return Ok(Named { node, cluster, addresses });
    }
    wait_to_be_named(arguments, service, addresses).await
}

/// Whose the directory is. What is not there is not made.
fn owner(data_dir: &Path) -> Result<Owner, CliError> {
    match data_dir.is_dir() {
        true => open(data_dir)?.owner().map_err(|error| refused(data_dir, &error)),
        false => Ok(Owner::Nobody),
    }
}

fn open(data_dir: &Path) -> Result<Directory, CliError> {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(data_dir).map_err(|error| refused(data_dir, &error))?);
    Directory::open(disk).map_err(|error| match error {
        node::IdentityError::InUse => CliError::Other(format!(
            "the data directory {} is in use by another process{}; stop that process, or choose another directory",
            data_dir.display(),
            crate::holder::noted_process(data_dir)
        ))
        .later(),
        error => refused(data_dir, &error),
    })
}

fn refused(data_dir: &Path, error: &dyn std::fmt::Display) -> CliError {
    CliError::Other(format!("{error} (the data directory is {})", data_dir.display()))
}

/// The member whose disk is lost, and whose place an empty directory takes.
fn lost<'a>(service: &'a Service, arguments: &ServeArguments, id: NodeId) -> Result<&'a Node, CliError> {
    let cluster = service.cluster.as_ref();
    let name = cluster.map(|cluster| cluster.name.clone()).unwrap_or_default();
    match cluster.is_some_and(|cluster| cluster.node(id).is_some()) {
        true => known(service, arguments, &name, id),
        false => Err(CliError::Usage(format!(
            "the cluster of {} has no member {id}, so no disk of it is lost; leave --id out, and the node takes an id by itself",
            service.place.address
        ))),
    }
}

/// Refuses an empty directory at the address of a member, which is what a lost disk looks like, and offers the two ways.
fn refuse_lost(service: &Service, arguments: &ServeArguments) -> Result<(), CliError> {
    let asked = arguments.addresses.asked();
    let members = service.cluster.iter().flat_map(|cluster| &cluster.nodes);
    let Some(member) = members.into_iter().find(|member| asked == Some(member.native.as_str())) else {
        return Ok(());
    };
    let (program, id, native) = (program(), member.id, &member.native);
    Err(CliError::Other(format!(
        "{id} already has the address {native}, and {} is empty. If the disk of {id} is lost, add --id {}: the node takes \
         its place again and fetches its records. If this is another node, choose another address with --listen, and make \
         it a member with `{program} node add`; it can take the places of {id} with `{program} node replace {} NEW --wait`",
        arguments.data_dir.display(),
        id.0,
        id.0
    )))
}

/// The entry of the node whose directory this is.
fn known<'a>(
    service: &'a Service,
    arguments: &ServeArguments,
    name: &str,
    id: NodeId,
) -> Result<&'a Node, CliError> {
    let shown = arguments.data_dir.display();
    let address = &service.place.address;
    let Some(cluster) = &service.cluster else {
        return Err(CliError::Other(format!(
            "the data directory {shown} belongs to {id} of cluster {name:?}, and {address} holds no cluster; correct the \
             address, or bring the documents back with `tontine coordination import`"
        ))
        .later());
    };
    if cluster.name != *name {
        return Err(CliError::Other(format!(
            "the data directory {shown} belongs to {id} of cluster {name:?}, and {address} holds cluster {:?}; correct the \
             address, or choose another directory",
            cluster.name
        )));
    }
    let entry = cluster.node(id).ok_or_else(|| {
        CliError::Other(format!(
            "{id}, whose data directory {shown} is, is no member of cluster {name:?} any more: its data is on other nodes; \
             choose an empty directory for a new node"
        ))
    })?;
    match &arguments.zone {
        Some(zone) if *zone != entry.zone.0 => Err(CliError::Usage(format!(
            "{id} is in zone {}, and its replicas are placed by that; start it without --zone, or a new node in zone {zone} \
             with an empty directory",
            entry.zone
        ))),
        _ => Ok(entry),
    }
}

fn placed(id: NodeId, zone: Zone, addresses: &Addresses) -> Node {
    let node::Advertised { native, resp, http, tls } = addresses.advertised.clone();
    Node { http, tls, ..Node::new(id, zone, native, resp) }
}

/// Whether the node could listen there. It listens when it serves: before that, whoever connects is refused at once.
fn probe(addresses: &Addresses, is_of_dev: bool) -> Result<(), CliError> {
    let Addresses { native, resp, http, .. } = addresses;
    for address in [Some(native), resp.as_ref(), http.as_ref()].into_iter().flatten() {
        std::net::TcpListener::bind(address).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                CliError::Other(crate::port_holder::in_use(address, is_of_dev)).later()
            }
            _ => CliError::io(format!("cannot listen at {address}"))(error),
        })?;
    }
    Ok(())
}

/// Registers a node that the cluster does not name yet, and waits until it does.
async fn wait_to_be_named(
    arguments: &ServeArguments,
    service: &mut Service,
    mut addresses: Addresses,
) -> Result<Named, CliError> {
    let ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
    // Held while it waits, so that no other process takes an id for the same directory.
    let directory = open(&arguments.data_dir)?;
    let given = match directory.owner().map_err(|error| refused(&arguments.data_dir, &error))? {
        Owner::Given(given) => given,
        Owner::Nobody => take_id(&ports, service, &directory, &arguments.data_dir).await?,
        Owner::Node { .. } => {
            return Err(CliError::Other(
                "another process began with the data directory meanwhile".to_owned(),
            ));
        }
    };
    let zone = Zone(arguments.zone.clone().unwrap_or_else(|| ZONE_DEFAULT.to_owned()));
    crate::holder::note_process(&arguments.data_dir);
    let cluster = loop {
        let node = placed(given.node, zone.clone(), &addresses);
        let follows_as = Some(service.place.user());
        let active = ActiveNode { follows_as, ..ActiveNode::new(node, given.since) };
        match apply(&ports, service, &directory, &active).await {
            Ok(cluster) => break cluster,
            Err(StartError::AddressTaken(taken)) if arguments.addresses.is_chosen() => {
                tracing::info!(address = taken.address, other = %taken.other, "another port is chosen");
                service.look_again().await?;
                let others: Vec<Node> =
                    service.others().into_iter().filter(|other| other.id != given.node).collect();
                addresses = arguments.addresses.settle(None, &others)?;
                probe(&addresses, arguments.stop_with_stdin)?;
            }
            Err(error) => return Err(not_named(&error)),
        }
    };
    drop(directory);
    let zone = cluster.node(given.node).map_or(zone, |entry| entry.zone.clone());
    Ok(Named { node: placed(given.node, zone, &addresses), cluster, addresses })
}

/// Registers a node, waits until its cluster names it, and says for what it waits. Goes along with the documents.
async fn apply(
    ports: &Ports,
    service: &mut Service,
    directory: &Directory,
    active: &ActiveNode,
) -> Result<Cluster, StartError> {
    let (begun, said) = (Instant::now(), Mutex::new(String::new()));
    let (from, mut place, id) = (service.place.clone(), service.place.clone(), active.node.id);
    let mut tell = |waits: &Waits| {
        if let Waits::Moved { to } = waits
            && let Ok(moved) = from.at(to)
        {
            place = moved;
        }
        let line = line(id, &place.address, waits);
        say!("{line}");
        tracing::info!(node = %id, waits = line, "node waits to be named");
        *said.lock() = line;
    };
    let applicant = Applicant { ports, active, directory, places: &from };
    let named = {
        let waited = applicant.until_named(&mut service.session, &mut tell);
        let mut waited = std::pin::pin!(waited);
        loop {
            tokio::select! {
                biased;
                named = &mut waited => break named,
                () = tokio::time::sleep(REMINDER) => {
                    say!("{} (for {} now)", said.lock(), crate::durations::rough(begun.elapsed()));
                }
            }
        }
    };
    service.place = place;
    named
}

fn not_named(error: &StartError) -> CliError {
    let failed = CliError::Other(error.to_string());
    if error.is_passing() { failed.later() } else { failed }
}

/// Takes an id that was never given, and keeps it before it is used.
async fn take_id(
    ports: &Ports,
    service: &Service,
    directory: &Directory,
    data_dir: &Path,
) -> Result<GivenId, CliError> {
    let taken = documents::take_id(&*service.session, ports.entropy.next_u64()).await;
    let (node, origin) = taken.map_err(unread)?;
    let given = GivenId { node, since: ports.clock.wall().0, origin };
    directory.keep(&given).await.map_err(|error| refused(data_dir, &error))?;
    tracing::info!(node = %given.node, "id taken");
    Ok(given)
}

/// For what a node waits, and who can end that.
fn line(node: NodeId, address: &Address, waits: &Waits) -> String {
    let (program, service) = (program(), crate::holder::shell(&[address.to_string()]));
    match waits {
        Waits::ForCluster => format!(
            "{node} is registered and waits until its cluster is created: {program} cluster create --name NAME \
             --coordination {service}"
        ),
        Waits::ToBeNamed { cluster, members } => format!(
            "{node} is registered and waits until cluster {cluster} admits it: {program} node add {} --connect {}",
            node.0,
            members.join(",")
        ),
        Waits::Moved { .. } => format!(
            "the documents have moved to {address}, and {node} waits there; give that address with --coordination from now \
             on"
        ),
        Waits::ForService { reason } => {
            format!("{node} waits for the coordination service {address}: {reason}")
        }
    }
}
