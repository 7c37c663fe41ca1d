//! Running one storage node inside this process: workers, listeners, and a clean stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coordination::CoordinationService;
use coordination::address::{Address, ServicePlace};
use model::{Cluster, NodeId};
use node::access::Certificate;
use node::audit::Outlet;
use node::disk_watch::DiskWatch;
use node::doors::http::{HttpOptions, Scheme};
use node::doors::resp::{CpuTime, RespOptions};
use node::engines::{Engines, LogEngines, MemoryEngines};
use node::events::Event;
use node::{IdentityError, Node, NodeConfig, StartError, Worker};
use parking_lot::Mutex;
use protocol::report::Installation;
use runtime::disk::os::OsDisk;
use runtime::network::bytes::{self, ByteListener};
use runtime::network::stream::{Safety, Stream};
use runtime::network::tcp::TcpNetwork;
use runtime::network::tls::{HTTP_2, Tls};
use runtime::sources::{Allowed, AllowedPrefix};
use runtime::workers::{Stop, Workers};
use runtime::{Disk, Listener, NetworkError, Ports};
use storage::{Durability, LogOptions};

use crate::addresses::{Addresses, refuse_open};
use crate::audit::AuditLog;
use crate::engine_kind::{EngineKind, show_durability};
use crate::failure::CliError;
use crate::limits::LimitSettings;
use crate::tls_settings::{self, TlsMode};
use crate::watchdog::Watchdog;

/// Events of a start that are looked at: how a node comes back is among the first.
const EVENTS_AT_START: usize = 1_000;

/// What makes up a node's process beyond what the cluster document says.
#[derive(Clone, Debug)]
pub(crate) struct NodeSpec {
    pub(crate) id: NodeId,
    pub(crate) cluster: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) coordination: ServicePlace,
    pub(crate) engine: EngineKind,
    pub(crate) durability: Durability,
    pub(crate) workers: usize,
    pub(crate) password: Option<String>,
    /// Whether a node that remembers that it needs a password may start without one.
    pub(crate) no_password: bool,
    /// Host names under which HTTP clients reach it.
    pub(crate) http_names: Vec<String>,
    pub(crate) limits: LimitSettings,
    pub(crate) hedge_after: Duration,
    pub(crate) repair_period: Duration,
    /// Below which URLs it may read artifacts.
    pub(crate) allow_sources: Vec<AllowedPrefix>,
    /// Where the node is: the cluster document need not know it yet.
    pub(crate) addresses: Addresses,
    /// Whether it may listen where other machines reach it.
    pub(crate) insecure: bool,
    /// What it takes without TLS.
    pub(crate) tls_mode: Option<TlsMode>,
    /// The certificate by which it proves what it is.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Where it writes who ordered what and who was refused.
    pub(crate) audit_file: Option<PathBuf>,
    /// Whether `tontine dev` has started it.
    pub(crate) is_of_dev: bool,
}

/// A node that serves.
pub(crate) struct RunningNode {
    node: Arc<Node>,
    workers: Workers<()>,
    audit: Option<Arc<AuditLog>>,
    /// Says when a worker hangs.
    _watchdog: Watchdog,
    /// Compares clocks as long as the node runs.
    clocks: tokio::task::JoinHandle<()>,
}

/// The listeners of one worker.
type Listeners = (Box<dyn Listener>, [Option<ByteListener>; 2]);

impl RunningNode {
    /// Takes the node's addresses, opens its data and serves.
    pub(crate) async fn start(
        spec: &NodeSpec,
        cluster: &Cluster,
        session: Arc<dyn CoordinationService>,
    ) -> Result<RunningNode, CliError> {
        let Some(me) = cluster.node(spec.id) else {
            return Err(format!(
                "cluster {:?} has no node {}; its nodes are {}",
                cluster.name,
                spec.id.0,
                cluster.nodes.iter().map(|node| node.id.0.to_string()).collect::<Vec<_>>().join(", ")
            )
            .into());
        };
        let addresses = &spec.addresses;
        refuse_unsafe(spec, cluster)?;
        let safety = tls_settings::safety(spec.tls_mode, spec.tls.as_ref())?;
        tls_settings::must_hold(spec.tls.as_ref(), &addresses.advertised.native)?;
        let is_loopback = refuse_open(spec.insecure || !cluster.is_anyones(), addresses)?;
        let network = Arc::new(tls_settings::network_of_node(spec.tls.as_ref()));
        let mut ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
        ports.network = network.clone();
        let port =
            addresses.resp.as_deref().and_then(|resp| resp.rsplit_once(':')?.1.parse().ok()).unwrap_or(0);
        // The directory before the addresses: that a node runs already says more than that its port is taken.
        let audit = spec.audit_file.as_deref().map(AuditLog::open).transpose()?;
        let node = open(spec, &ports, port, (session, audit.clone())).await?;
        let listeners = match listen(&network, addresses, spec.workers, &safety) {
            Ok(listeners) => Arc::new(Mutex::new(listeners)),
            Err(error) => {
                // What matters is why it did not start.
                let _ = node.stop().await;
                return Err(not_listening(spec, error));
            }
        };
        crate::holder::note_process(&spec.data_dir);
        log_start(spec, me);
        if !is_loopback && !cluster.is_closed() {
            say!(
                "warning: anyone who can reach {} can read and change all data of {}, because nothing is authenticated or \
                 encrypted; keep this network closed to others",
                addresses.native,
                spec.id
            );
        }
        let events: Vec<Event> =
            node.events().after(0, EVENTS_AT_START).into_iter().map(|recorded| recorded.event).collect();
        if let Some(line) = crate::losses::line(spec.id, &spec.data_dir, cluster, &events) {
            say!("{line}");
        }
        let watchdog = Watchdog::start(spec.id, spec.workers)
            .map_err(CliError::io("cannot start the thread that watches the workers"))?;
        let (serving, turns) = (node.clone(), watchdog.turns());
        let workers = Workers::start(spec.workers, &ports, move |worker| {
            Watchdog::turn(&turns, worker.index, &worker.ports);
            let mine = listeners.lock()[worker.index].take().expect("each worker starts once");
            serve(serving.clone(), worker, mine)
        })
        .map_err(CliError::io("cannot start the worker threads"))?;
        let clocks = tokio::spawn(crate::clocks::watch(node.clone(), network));
        Ok(RunningNode { node, workers, audit, _watchdog: watchdog, clocks })
    }

    /// Ends serving, makes everything durable and leaves.
    pub(crate) async fn stop(self) -> Result<(), CliError> {
        let node = self.node.id();
        tracing::info!(%node, "node stops");
        crate::watchdog::limit_stop(node);
        self.clocks.abort();
        self.node.leave().await;
        self.node.settle().await;
        self.workers.stop();
        self.workers.join().await.map_err(|error| CliError::Other(error.to_string()))?;
        let stopped = self.node.stop().await;
        if let Some(audit) = &self.audit {
            audit.close();
        }
        match stopped {
            Ok(()) => {
                tracing::info!(%node, "node stopped");
                Ok(())
            }
            Err(error) => {
                tracing::error!(%node, %error, "node not stopped cleanly");
                Err(CliError::Other(format!("{node} did not stop cleanly: {error}")))
            }
        }
    }
}

/// Refuses what would leave a closed cluster open, or look as if it did.
fn refuse_unsafe(spec: &NodeSpec, cluster: &Cluster) -> Result<(), CliError> {
    if !cluster.is_closed() {
        return Ok(());
    }
    if spec.tls_mode != Some(TlsMode::Require) {
        return Err(CliError::Usage(format!(
            "cluster {:?} has users, so its nodes require TLS; add --tls require, --tls-cert, --tls-key and --tls-authority",
            cluster.name
        )));
    }
    match spec.password {
        Some(_) => Err(CliError::Usage(format!(
            "cluster {:?} has users, and Redis clients give their secrets; leave --password out, unset TONTINE_PASSWORD, and \
             add --no-password once",
            cluster.name
        ))),
        None => Ok(()),
    }
}

/// Says in the log what starts, and with which settings.
fn log_start(spec: &NodeSpec, me: &model::Node) {
    let addresses = &spec.addresses;
    tracing::info!(
        node = %spec.id,
        version = env!("CARGO_PKG_VERSION"),
        process = std::process::id(),
        cluster = spec.cluster,
        zone = %me.zone,
        native = addresses.native,
        redis = addresses.resp.as_deref(),
        http = addresses.http.as_deref(),
        advertised = addresses.advertised.native,
        data_directory = %spec.data_dir.display(),
        engine = match spec.engine {
            EngineKind::Log => "log",
            EngineKind::Memory => "memory",
        },
        durability = %show_durability(spec.durability),
        workers = spec.workers,
        password_required = spec.password.is_some(),
        "node starts"
    );
}

/// Says why a node of a cluster that exists cannot take its addresses.
fn not_listening(spec: &NodeSpec, error: NetworkError) -> CliError {
    let NetworkError::AddressInUse { address } = error else {
        return CliError::Other(format!("node {}: {error}", spec.id.0)).later();
    };
    let why = crate::port_holder::in_use(&address, spec.is_of_dev);
    CliError::Other(format!("node {}: {why}", spec.id.0)).later()
}

/// Takes the node's addresses, for each of its workers.
fn listen(
    network: &TcpNetwork,
    addresses: &Addresses,
    workers: usize,
    safety: &Safety,
) -> Result<Vec<Option<Listeners>>, NetworkError> {
    let native = network.listen_safely(&addresses.native, workers, safety)?;
    let door = |address: &Option<String>, http: bool| -> Result<Vec<Option<ByteListener>>, NetworkError> {
        Ok(match address {
            Some(address) => {
                bytes::listen_safely(address, workers, safety, http)?.into_iter().map(Some).collect()
            }
            None => (0..workers).map(|_| None).collect(),
        })
    };
    let doors = door(&addresses.resp, false)?.into_iter().zip(door(&addresses.http, true)?);
    Ok(native.into_iter().zip(doors.map(|(resp, http)| [resp, http])).map(Some).collect())
}

async fn open(
    spec: &NodeSpec,
    ports: &Ports,
    port: u16,
    (session, audit): (Arc<dyn CoordinationService>, Option<Arc<AuditLog>>),
) -> Result<Arc<Node>, CliError> {
    let refused = |error: &dyn std::fmt::Display| CliError::Other(format!("node {}: {error}", spec.id.0));
    crate::holder::refuse_file(&spec.data_dir)?;
    crate::file_system::refuse_network("--data-dir", &spec.data_dir)?;
    let disk: Arc<dyn Disk> =
        Arc::new(OsDisk::open(&spec.data_dir).map_err(|error| refused(&error).later())?);
    let watched = DiskWatch::new(disk, spec.id, ports.clock.clone());
    let disk: Arc<dyn Disk> = watched.clone();
    let engines: Arc<dyn Engines> = match spec.engine {
        EngineKind::Memory => Arc::new(MemoryEngines),
        EngineKind::Log => {
            let options = LogOptions { durability: spec.durability, ..LogOptions::default() };
            Arc::new(LogEngines { disk: disk.clone(), options, ports: ports.clone() })
        }
    };
    let mut config = NodeConfig::new(spec.id, &spec.cluster);
    config.requests.limits = spec.limits.admission();
    config.hints.bytes_max = spec.limits.hint_bytes_max;
    config.artifacts.fetch_ceiling = spec.limits.fetch_ceiling;
    config.artifacts.bytes_max = spec.limits.artifact_bytes_max.unwrap_or(u64::MAX);
    config.doors.resp = RespOptions {
        password: spec.password.clone(),
        port,
        process_id: std::process::id(),
        cpu: Some(cpu_time),
        ..RespOptions::default()
    };
    config.doors.http = HttpOptions { password: spec.password.clone(), names: http_names(spec) };
    config.member.advertised = Some(spec.addresses.advertised.clone());
    config.doors.may_stop_requiring_password = spec.no_password;
    config.requests.coordinator.hedge_after = spec.hedge_after;
    config.repair.antientropy.period = spec.repair_period;
    let sources = crate::artifact::sources().map_err(CliError::Other)?;
    config.artifacts.sources = Some(Arc::new(Allowed::new(sources, spec.allow_sources.clone())));
    config.doors.certificate = spec.tls.clone().map(|tls| {
        Arc::new(tls_settings::ShownCertificate { tls, mode: spec.tls_mode }) as Arc<dyn Certificate>
    });
    config.doors.audit = audit.map(|audit| audit as Arc<dyn Outlet>);
    config.member.places = Some(Arc::new(spec.coordination.clone()));
    config.member.installation = Installation {
        process_id: std::process::id(),
        data_directory: absolute(&spec.data_dir),
        coordination_directory: match &spec.coordination.address {
            Address::Directory(directory) => absolute(directory),
            address @ Address::ZooKeeper(_) => address.to_string(),
        },
    };
    let started = Node::start(config, ports.clone(), disk, engines, session).await;
    let node = started.map_err(|error| match error {
        StartError::Identity(IdentityError::InUse) => CliError::Other(format!(
            "node {}: the data directory {} is in use by another process{}; stop that process, or choose another directory",
            spec.id.0,
            spec.data_dir.display(),
            crate::holder::noted_process(&spec.data_dir)
        ))
        .later(),
        StartError::Identity(error @ IdentityError::Disk(_)) => refused(&error).later(),
        StartError::Identity(error) => {
            refused(&format!("{error} (the directory is {})", spec.data_dir.display()))
        }
        other if other.is_passing() => refused(&other).later(),
        other => refused(&other),
    })?;
    watched.register(node.metrics());
    node.metrics().watch("tontine_process_resident_bytes", &[], || resident_bytes().unwrap_or(0) as f64);
    Ok(node)
}

/// The host names under which HTTP clients reach the node: what others know it by is one of them.
fn http_names(spec: &NodeSpec) -> Vec<String> {
    let advertised = spec.addresses.advertised.http.as_deref().and_then(|address| address.rsplit_once(':'));
    spec.http_names.iter().cloned().chain(advertised.map(|(host, _)| host.to_owned())).collect()
}

/// Memory of this process, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim();
    Some(kibibytes.strip_suffix(" kB")?.trim_end().parse::<u64>().ok()? << 10)
}

/// What this process has used.
fn cpu_time() -> CpuTime {
    let sample = bench::processes::Sample::take(std::process::id());
    sample.map_or_else(CpuTime::default, |sample| CpuTime { user: sample.user, system: sample.system })
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

async fn serve(node: Arc<Node>, worker: runtime::workers::Worker, listeners: Listeners) {
    let (mut native, [resp, http]) = listeners;
    let ports = worker.ports.clone();
    let Worker { service, door, http: web } = node.worker(worker.ports);
    let mut native_stop = worker.stop.clone();
    let serve_resp = serve_thin(resp, ThinDoor::Redis(door), worker.stop.clone(), ports.clone());
    let serve_http = serve_thin(http, ThinDoor::Http(web), worker.stop, ports.clone());
    let serve_native = async move {
        loop {
            tokio::select! {
                biased;
                () = native_stop.asked() => return,
                link = native.accept() => match link {
                    Ok(link) => ports.tasks.spawn(Box::pin(service.clone().serve(link))),
                    Err(error @ NetworkError::Closed) => {
                        tracing::error!(%error, "native listener ended");
                        return;
                    }
                    // It concerns one peer, which has its answer already.
                    Err(error) => tracing::debug!(%error, "connection refused"),
                },
            }
        }
    };
    tokio::join!(serve_native, serve_resp, serve_http);
}

/// A door for clients that speak somebody else's protocol.
#[derive(Clone)]
enum ThinDoor {
    Redis(node::doors::resp::Door),
    Http(node::doors::http::Door),
}

impl ThinDoor {
    /// What the log calls it.
    fn name(&self) -> &'static str {
        match self {
            ThinDoor::Redis(_) => "redis",
            ThinDoor::Http(_) => "http",
        }
    }

    /// Completes when it takes no new connections any more.
    async fn closing(&self) {
        match self {
            ThinDoor::Redis(door) => door.closing().await,
            ThinDoor::Http(door) => door.closing().await,
        }
    }

    async fn serve(&self, stream: Stream, peer: String, local: String) {
        match self {
            ThinDoor::Redis(door) => door.serve(stream, peer, local).await,
            ThinDoor::Http(door) if stream.protocol() == Some(HTTP_2) => {
                door.serve_streams(stream, peer).await
            }
            ThinDoor::Http(door) => {
                let scheme = match &stream {
                    Stream::Plain(_) => Scheme::Http,
                    Stream::Tls(_) => Scheme::Https,
                };
                door.serve(stream, peer, scheme).await;
            }
        }
    }
}

async fn serve_thin(listener: Option<ByteListener>, door: ThinDoor, mut stop: Stop, ports: Ports) {
    let Some(mut listener) = listener else { return stop.asked().await };
    let local = listener.address().to_string();
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = door.closing(), if open => {
                listener.close();
                open = false;
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (door, local) = (door.clone(), local.clone());
                    ports.tasks.spawn(Box::pin(async move {
                        door.serve(stream, peer.to_string(), local).await;
                    }));
                }
                Err(NetworkError::Closed) if !open => return stop.asked().await,
                Err(error) if !matches!(error, NetworkError::Closed) => {
                    // It concerns one peer, which was told.
                    tracing::debug!(%error, "connection refused");
                }
                Err(error) => {
                    tracing::error!(%error, door = door.name(), "listener ended");
                    return;
                }
            },
        }
    }
}
