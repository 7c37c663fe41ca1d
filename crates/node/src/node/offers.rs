//! Cluster documents that peers hand over, until the node has time to open the stores that they need.
//!
//! Only the newest counts, so only the newest is kept: however many peers offer however often, there is room for one.
//! An older one that makes way is not missed, because the newer one says all that it said; and an offer that came
//! while the node could not use it comes again with the next answer of that peer.
//!
//! **Architecture Invariant:** offering never waits and never keeps more than one document.

use model::Cluster;
use tokio::sync::watch;

/// The place for the newest document.
pub(super) struct Offers {
    newest: watch::Sender<Option<Cluster>>,
}

/// Learns of offers.
pub(super) struct Listening {
    newest: watch::Receiver<Option<Cluster>>,
}

impl Offers {
    /// None yet.
    pub(super) fn new() -> (Offers, Listening) {
        let (newest, heard) = watch::channel(None);
        (Offers { newest }, Listening { newest: heard })
    }

    /// Keeps a document unless one as new is waiting already.
    pub(super) fn offer(&self, cluster: Cluster) {
        self.newest.send_if_modified(|waiting| {
            let is_newer = waiting.as_ref().is_none_or(|waiting| waiting.generation < cluster.generation);
            if is_newer {
                *waiting = Some(cluster);
            }
            is_newer
        });
    }

    /// Takes out the document that waits.
    pub(super) fn take(&self) -> Option<Cluster> {
        let mut taken = None;
        self.newest.send_if_modified(|waiting| {
            taken = waiting.take();
            false
        });
        taken
    }
}

impl Listening {
    /// Completes when there was an offer since the last call; false when the node is gone. Dropping the future loses
    /// nothing.
    pub(super) async fn heard(&mut self) -> bool {
        self.newest.changed().await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use model::{Generation, Node, NodeId, Ring, Zone};

    use super::*;

    fn document(generation: u64) -> Cluster {
        let zone = Zone("a".to_owned());
        let nodes = vec![Node::new(NodeId(1), zone.clone(), "", None)];
        let ring = Ring::equal_slices(4, &[(NodeId(1), zone)]);
        Cluster { generation: Generation(generation), ..Cluster::new("test", nodes, ring, Vec::new()) }
    }

    fn taken(offers: &Offers) -> Option<u64> {
        offers.take().map(|cluster| cluster.generation.0)
    }

    #[test]
    fn only_the_newest_of_many_pending_offers_is_kept() {
        let (offers, mut listening) = Offers::new();
        for generation in (2..=1_000).chain((2..900).rev()) {
            offers.offer(document(generation));
        }
        assert_eq!(listening.heard().now_or_never(), Some(true));
        assert_eq!(taken(&offers), Some(1_000));
        assert_eq!(taken(&offers), None, "one place");
        assert_eq!(listening.heard().now_or_never(), None, "nothing new");
    }

    #[test]
    fn an_offer_that_was_dropped_can_be_made_again() {
        let (offers, mut listening) = Offers::new();
        offers.offer(document(3));
        offers.offer(document(2));
        assert_eq!(listening.heard().now_or_never(), Some(true));
        assert_eq!(taken(&offers), Some(3));
        // The node could not use generation 3; the peers go on answering with what they have.
        for generation in [2, 3] {
            offers.offer(document(generation));
            assert_eq!(listening.heard().now_or_never(), Some(true));
            assert_eq!(taken(&offers), Some(generation));
        }
    }

    #[test]
    fn a_listener_learns_that_the_node_is_gone() {
        let (offers, mut listening) = Offers::new();
        drop(offers);
        assert_eq!(listening.heard().now_or_never(), Some(false));
    }
}
