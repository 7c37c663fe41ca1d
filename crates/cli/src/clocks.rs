//! Whether the clocks of nodes agree.
//!
//! Versions of stores that keep the last write are ordered by clocks, so a clock that is far off loses writes: those of
//! the others, or its own. Nodes and the doctor say so.
//!
//! **Architecture Invariant:** no clock is corrected here, and no request depends on what is found.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use client::{Client, ClientOptions};
use model::WallMillis;
use node::Node;
use protocol::report::Parts;
use runtime::{Network, Ports};

/// Clocks may differ by so much.
pub(crate) const DIFFERENCE_MAX: Duration = Duration::from_secs(60);
/// Nodes that a node asks: enough that one wrong clock among them is outvoted.
const PEERS_ASKED: usize = 5;
/// How often a node asks others for their time.
const PERIOD: Duration = Duration::from_secs(60);
/// Longest wait for the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// This machine's time, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// By how many milliseconds the clock of a node that answered is ahead of this machine's, which showed `asked` before and
/// `answered` after.
pub(crate) fn ahead_ms(at: WallMillis, asked: i64, answered: i64) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX).saturating_sub(asked.midpoint(answered))
}

/// By how much each clock that is too far off differs from most, given how far each is ahead of one and the same clock.
pub(crate) fn off<Id: Copy>(ahead: &[(Id, i64)]) -> Vec<(Id, i64)> {
    let mut sorted: Vec<i64> = ahead.iter().map(|(_, ahead)| *ahead).collect();
    sorted.sort_unstable();
    let Some(middle) = sorted.get(sorted.len().saturating_sub(1) / 2) else { return Vec::new() };
    let limit = i64::try_from(DIFFERENCE_MAX.as_millis()).expect("a minute");
    let differences = ahead.iter().map(|(id, ahead)| (*id, ahead - middle));
    differences.filter(|(_, difference)| difference.abs() > limit).collect()
}

/// A difference in words: `90 s ahead of`, `90 s behind`.
pub(crate) fn shown(difference_ms: i64) -> String {
    let by = crate::durations::rough(Duration::from_millis(difference_ms.unsigned_abs()));
    if difference_ms > 0 { format!("{by} ahead of") } else { format!("{by} behind") }
}

/// Asks a few other nodes for their time again and again, and says when this machine's differs from that of most.
pub(crate) async fn watch(node: Arc<Node>, network: Arc<dyn Network>) {
    let me = node.id();
    let (mut client, mut told) = (None, false);
    loop {
        tokio::time::sleep(PERIOD).await;
        let cluster = node.replica().view().get().cluster().clone();
        if client.is_none() {
            let known: Vec<String> = cluster.nodes.iter().map(model::Node::dialed).collect();
            client = connect(&known, network.clone()).await;
        }
        let Some(client) = &client else { continue };
        let mut ahead = vec![(me, 0)];
        let after = cluster.nodes.iter().filter(|other| other.id > me);
        let before = cluster.nodes.iter().filter(|other| other.id < me);
        for peer in after.chain(before).take(PEERS_ASKED) {
            let asked = now_ms();
            // Without any part it says what its clock shows, and nothing else.
            let answer = tokio::time::timeout(PATIENCE, client.report(peer.id, Parts::default())).await;
            // One that does not answer has no say.
            let report = answer.ok().and_then(Result::ok);
            ahead.extend(report.map(|report| (peer.id, ahead_ms(report.at_ms, asked, now_ms()))));
        }
        let own = off(&ahead).into_iter().find(|(id, _)| *id == me);
        if let Some((_, difference)) = own.filter(|_| !told) {
            let by = shown(difference);
            tracing::warn!(node = %me, by, "clock differs from those of the other nodes");
            say!(
                "{me}: the clock of this machine is {by} those of the other nodes; set it, for example with NTP: the \
                 newest write of a key is the one with the latest time"
            );
        }
        told = own.is_some();
    }
}

async fn connect(addresses: &[String], network: Arc<dyn Network>) -> Option<Client> {
    let options =
        ClientOptions { name: "tontine-clock".to_owned(), deadline: PATIENCE, ..ClientOptions::default() };
    let ports = Ports { network, ..Ports::os().ok()? };
    Client::connect(addresses, ports, options).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_more_than_a_minute_from_most_is_off() {
        assert_eq!(off::<u32>(&[]), []);
        assert_eq!(off(&[(1, 0)]), []);
        assert_eq!(off(&[(1, 0), (2, 59_000), (3, -60_000)]), []);
        assert_eq!(off(&[(1, 0), (2, 90_000), (3, 10)]), [(2, 89_990)]);
        assert_eq!(off(&[(1, -3_600_000), (2, 0), (3, 10)]), [(1, -3_600_000)]);
        // Of two nobody knows which is right: the one that is ahead is named.
        assert_eq!(off(&[(1, 0), (2, 61_000)]), [(2, 61_000)]);
        assert_eq!((shown(90_000), shown(-90_000)), ("1m30s ahead of".to_owned(), "1m30s behind".to_owned()));
        assert_eq!(ahead_ms(WallMillis(5_000), 1_000, 3_000), 3_000);
    }
}
