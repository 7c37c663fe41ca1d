//! The settings of a node, each group for the part of it that reads them.

use std::sync::Arc;

use client::coordinator::CoordinatorOptions;
use coordination::address::Places;
use coordination::documents::ActiveNode;
use model::NodeId;
use protocol::admission::AdmissionLimits;
use protocol::handoff::HandoffOptions;
use protocol::report::Installation;
use runtime::Sources;

use crate::access::Certificate;
use crate::antientropy::AntiEntropyOptions;
use crate::audit::Outlet;
use crate::collection::CollectionOptions;
use crate::doors::{http, resp};
use crate::expiry::ExpiryOptions;
use crate::hints::HINT_BYTES_MAX;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Who it is, and where.
    pub member: MemberConfig,
    /// How much it takes in, and how it drives that.
    pub requests: RequestConfig,
    /// Its ways in, and who may enter.
    pub doors: DoorConfig,
    /// Writes that it keeps for other nodes.
    pub hints: HintConfig,
    /// How it looks after its records.
    pub repair: RepairConfig,
    /// What read-only stores serve.
    pub artifacts: ArtifactConfig,
}

/// Who a node is, and where.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The node.
    pub id: NodeId,
    /// The cluster that it belongs to.
    pub cluster: String,
    /// Where others reach it, where that may be elsewhere than the cluster document says: the node then changes its entry
    /// there. Default: it stays as it is.
    pub advertised: Option<Advertised>,
    /// How it goes along when the documents move to another service. Default: it does not.
    pub places: Option<Arc<dyn Places>>,
    /// Where it runs; its status says so.
    pub installation: Installation,
}

/// Where others reach a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// `host:port` of the native protocol.
    pub native: String,
    /// `host:port` of the Redis door, if it has one.
    pub resp: Option<String>,
    /// `host:port` of the HTTP door, if it has one.
    pub http: Option<String>,
    /// Whether others call it with TLS, and never without.
    pub tls: bool,
}

/// How much a node takes in, and how it drives that.
#[derive(Clone, Debug, Default)]
pub struct RequestConfig {
    /// How much it takes in at once, over all its doors, before it answers *overloaded*.
    pub limits: AdmissionLimits,
    /// How it drives requests.
    pub coordinator: CoordinatorOptions,
}

/// The ways into a node, and who may enter.
#[derive(Clone, Debug, Default)]
pub struct DoorConfig {
    /// The Redis door.
    pub resp: resp::RespOptions,
    /// The HTTP door.
    pub http: http::HttpOptions,
    /// Whether it may start without the password for Redis clients that its directory remembers. Default: no.
    pub may_stop_requiring_password: bool,
    /// The certificate that it shows. Default: it has none.
    pub certificate: Option<Arc<dyn Certificate>>,
    /// Where it writes who ordered what and who was refused. Default: nowhere.
    pub audit: Option<Arc<dyn Outlet>>,
}

/// Writes that a node keeps for other nodes.
#[derive(Clone, Debug)]
pub struct HintConfig {
    /// Bytes of hints that it holds at most. Default: 1 GiB.
    pub bytes_max: u64,
    /// How it brings hints to their targets.
    pub handoff: HandoffOptions,
}

impl Default for HintConfig {
    fn default() -> Self {
        HintConfig { bytes_max: HINT_BYTES_MAX, handoff: HandoffOptions::default() }
    }
}

/// How a node looks after its records.
#[derive(Clone, Debug, Default)]
pub struct RepairConfig {
    /// How it compares with its peers and looks after its own records.
    pub antientropy: AntiEntropyOptions,
    /// How it collects tombstones.
    pub collection: CollectionOptions,
    /// How it reaps values that have expired.
    pub expiry: ExpiryOptions,
}

/// What a node fetches and keeps for read-only stores.
#[derive(Clone, Debug)]
pub struct ArtifactConfig {
    /// What it fetches artifacts from. Default: nothing.
    pub sources: Option<Arc<dyn Sources>>,
    /// Whether it reads the manifest of an artifact before it lists it. Default: yes.
    pub sources_checked: bool,
    /// Bytes of artifacts a second that it fetches at most, and gives other nodes at most. Default: 128 MiB.
    pub fetch_ceiling: u64,
    /// Bytes of artifacts that it holds at most, over all stores. Default: as many as its disk has room for.
    pub bytes_max: u64,
}

impl Default for ArtifactConfig {
    fn default() -> Self {
        ArtifactConfig {
            sources: None,
            sources_checked: true,
            fetch_ceiling: protocol::pace::FETCH_CEILING_DEFAULT,
            bytes_max: u64::MAX,
        }
    }
}

impl NodeConfig {
    /// The defaults.
    pub fn new(id: NodeId, cluster: &str) -> Self {
        let (cluster, installation) = (cluster.to_owned(), Installation::default());
        NodeConfig {
            member: MemberConfig { id, cluster, advertised: None, places: None, installation },
            requests: RequestConfig::default(),
            doors: DoorConfig::default(),
            hints: HintConfig::default(),
            repair: RepairConfig::default(),
            artifacts: ArtifactConfig::default(),
        }
    }

    /// How the node registers.
    pub(super) fn registration(&self, entry: &model::Node, incarnation: u64) -> ActiveNode {
        let follows_as = self.member.places.as_ref().map(|places| places.user());
        ActiveNode {
            follows_as,
            cluster: Some(self.member.cluster.clone()),
            ..ActiveNode::new(self.placed(entry), incarnation)
        }
    }

    /// The node's entry in the cluster document as it should be.
    fn placed(&self, entry: &model::Node) -> model::Node {
        match self.member.advertised.clone() {
            Some(Advertised { native, resp, http, tls }) => {
                model::Node { native, resp, http, tls, ..entry.clone() }
            }
            None => entry.clone(),
        }
    }
}
