//! Who is told what calls experience, and believes it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use model::{Cluster, NodeId};
use protocol::gossip::{Experience, Probe, Suspects};
use runtime::Tasks;
use runtime::locks::Mutex;
use wire::messages::{Ping, Request};

use super::{CONNECT_TIMEOUT, CallError, Peers};

/// Is told what calls and attempts to connect experience, from whatever thread they run on: must not wait.
pub trait Witness: Send + Sync {
    /// `node` met a call so.
    fn experienced(&self, node: NodeId, experience: Experience);

    /// Whether calls to `node` are better avoided.
    fn is_suspected(&self, node: NodeId) -> bool;

    /// Whether `node` is believed to be away, and not only suspected. Who cannot tell these apart takes it for away.
    fn is_gone(&self, node: NodeId) -> bool {
        self.is_suspected(node)
    }

    /// The cluster's nodes may have changed.
    fn learn(&self, _cluster: &Cluster) {}
}

/// What the links to one node know about it, without a lock.
pub(super) struct LinkStanding {
    node: NodeId,
    witness: Arc<dyn Witness>,
    /// Frames that came from it.
    frames: AtomicU64,
    /// As many as when somebody last asked.
    frames_seen: AtomicU64,
    /// Something bad was experienced since its last reply, so the next one is news.
    wary: AtomicBool,
}

impl LinkStanding {
    pub(super) fn new(node: NodeId, witness: Arc<dyn Witness>) -> Arc<LinkStanding> {
        let (frames, frames_seen) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(LinkStanding { node, witness, frames, frames_seen, wary: AtomicBool::new(false) })
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// An answer came. Costs an addition unless somebody waits for it.
    pub(super) fn replied(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        if self.wary.load(Ordering::Relaxed) {
            self.wary.store(false, Ordering::Relaxed);
            self.witness.experienced(self.node, Experience::Replied);
        }
    }

    pub(super) fn met(&self, experience: Experience) {
        match experience {
            Experience::Replied => return self.replied(),
            // A link is rare, and its news ends doubts that no answer ends.
            Experience::Greeted => {
                self.frames.fetch_add(1, Ordering::Relaxed);
                self.wary.store(false, Ordering::Relaxed);
                return self.witness.experienced(self.node, experience);
            }
            _ => {}
        }
        self.wary.store(true, Ordering::Relaxed);
        self.witness.experienced(self.node, experience);
    }

    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether anything came since this was asked last.
    pub(super) fn was_heard(&self) -> bool {
        let frames = self.frames();
        self.frames_seen.swap(frames, Ordering::Relaxed) != frames
    }
}

/// A client's own belief, by its calls alone.
pub(super) struct OwnBelief {
    suspects: Mutex<Suspects>,
    /// So that the healthy case costs one load.
    count: AtomicUsize,
    /// Probes that nobody has sent yet: what is experienced may be experienced by a destructor, where no task starts.
    wanted: Mutex<Vec<Probe>>,
    peers: Weak<Peers>,
}

impl OwnBelief {
    pub(super) fn new(peers: Weak<Peers>) -> Arc<OwnBelief> {
        let (suspects, wanted) = (Mutex::default(), Mutex::default());
        Arc::new(OwnBelief { suspects, count: AtomicUsize::new(0), wanted, peers })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Suspects) -> T) -> T {
        let mut suspects = self.suspects.lock();
        let changed = change(&mut suspects);
        self.count.store(suspects.count(), Ordering::Relaxed);
        changed
    }

    /// Sends the probes that are wanted. Called with every call, because that is on an executor's thread.
    pub(super) fn attend(self: &Arc<Self>, tasks: &dyn Tasks) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for probe in std::mem::take(&mut *self.wanted.lock()) {
            tasks.spawn(Box::pin(ask_again(self.clone(), probe)));
        }
    }
}

impl Witness for OwnBelief {
    fn experienced(&self, node: NodeId, experience: Experience) {
        let probe = self.change(|suspects| suspects.experienced(node, experience));
        assert!(probe.is_none_or(|probe| probe.node == node), "{probe:?} is to settle a doubt about {node}");
        self.wanted.lock().extend(probe);
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.suspects.lock().contains(node)
    }

    fn learn(&self, cluster: &Cluster) {
        self.change(|suspects| suspects.retain(|node| cluster.node(node).is_some()));
    }
}

/// Asks a suspected node beside the requests until it answers, or nobody wants to know any more.
async fn ask_again(belief: Arc<OwnBelief>, first: Probe) {
    let mut probe = first;
    loop {
        let Some(clock) = belief.peers.upgrade().map(|peers| peers.ports().clock.clone()) else { return };
        clock.sleep(probe.after).await;
        let is_wanted = belief.suspects.lock().wants(&probe);
        let Some(peers) = belief.peers.upgrade().filter(|_| is_wanted) else { return };
        let call = peers.call(probe.node, Request::Ping(Ping {}));
        drop(peers);
        let answer = call.within(&clock, CONNECT_TIMEOUT).await;
        let answered = matches!(answer, Ok(_) | Err(CallError::Refused(_)));
        let next = belief.change(|suspects| match answered {
            true => suspects.probe_answered(probe),
            false => suspects.probe_failed(probe),
        });
        let Some(next) = next else { return };
        assert_eq!(next.node, probe.node, "a doubt is settled by asking the node that is doubted");
        probe = next;
    }
}
