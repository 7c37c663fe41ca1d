//! Whether the certificates of nodes expire, and whether a closed cluster is closed everywhere and to everybody.

use std::time::Duration;

use model::Cluster;
use model::access::ANYONE;

use super::finding::{Code, Finding};
use crate::durations::rough;
use crate::output::program;
use crate::status::NodeStatus;

/// How long before its end a certificate is spoken of: time enough to make another one in office hours.
const NOTICE: Duration = Duration::from_secs(30 * 86_400);

/// What there is to say of the certificates of these nodes, and of what they take without.
pub(super) fn found(cluster: &Cluster, nodes: &[NodeStatus]) -> Vec<Finding> {
    let now_ms = crate::clocks::now_ms().unsigned_abs();
    let expiring = nodes.iter().filter_map(|status| expires(status, now_ms));
    let plain = nodes.iter().filter(|_| cluster.is_closed()).filter_map(takes_plain);
    expiring.chain(plain).chain(lets_anyone_write(cluster)).collect()
}

fn expires(status: &NodeStatus, now_ms: u64) -> Option<Finding> {
    let (id, until) = (status.node.id, status.status()?.tls?.certificate_expires_ms?.0);
    let left = Duration::from_millis(until.saturating_sub(now_ms));
    if left > NOTICE {
        return None;
    }
    let (code, what) = match left.is_zero() {
        true => {
            let ago = rough(Duration::from_millis(now_ms - until));
            (
                Code::CertificateExpired,
                format!("the certificate of {id} expired {ago} ago: no new connection trusts it"),
            )
        }
        false => {
            let what = format!(
                "the certificate of {id} expires in {}: no new connection trusts it then",
                rough(left)
            );
            (Code::CertificateExpires, what)
        }
    };
    let next = format!(
        "make a new one with the same names, and put both files in the place of the old ones; {id} reads them again by itself: \
         {} cert node AUTHORITY NAME ADDRESS --renew",
        program()
    );
    Some(Finding { code, node: Some(id), store: None, what, next })
}

/// A cluster without users is one by choice, and `serve` has said so.
fn lets_anyone_write(cluster: &Cluster) -> Option<Finding> {
    let may = match cluster.users.get(ANYONE)?.is_admin() {
        true => "do everything",
        false => "write every store",
    };
    cluster.is_anyones().then(|| Finding {
        code: Code::AnyoneWrites,
        node: None,
        store: None,
        what: format!("a client without a secret may {may}: the user {ANYONE} has that right"),
        next: format!("once every program has its own secret, run: {} user remove {ANYONE}", program()),
    })
}

fn takes_plain(status: &NodeStatus) -> Option<Finding> {
    let id = status.node.id;
    // A node that says nothing of TLS speaks none.
    let is_open = status.status()?.tls.is_none_or(|tls| tls.plain_accepted);
    is_open.then(|| Finding {
        code: Code::PlainAccepted,
        node: Some(id),
        store: None,
        what: format!(
            "{id} takes connections without TLS although the cluster has users: what goes over them, secrets too, can be read \
             on the network"
        ),
        next: format!("restart {id} with --tls require, --tls-cert, --tls-key and --tls-authority"),
    })
}

#[cfg(test)]
mod tests {
    use model::{Cluster, NodeId, Ring, WallMillis, Zone};
    use protocol::report::{Status, TlsStatus};

    use super::super::tests::answering;
    use super::*;

    const DAY_MS: u64 = 86_400_000;

    fn node(days: i64, plain_accepted: bool) -> NodeStatus {
        let now_ms = crate::clocks::now_ms();
        let at = now_ms + days * DAY_MS.cast_signed() + 60_000;
        let certificate_expires_ms = Some(WallMillis(at.unsigned_abs()));
        let tls = Some(TlsStatus { certificate_expires_ms, plain_accepted });
        answering(1, Status { tls, ..Status::default() })
    }

    fn codes(cluster: &Cluster, status: NodeStatus) -> Vec<Code> {
        found(cluster, &[status]).into_iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_certificate_is_spoken_of_before_and_after_its_end() {
        let ring = Ring::equal_slices(1, &[(NodeId(1), Zone("a".to_owned()))]);
        let mut cluster = Cluster::new("shop", Vec::new(), ring, Vec::new());
        assert_eq!(codes(&cluster, node(31, true)), []);
        assert_eq!(codes(&cluster, node(29, true)), [Code::CertificateExpires]);
        assert_eq!(codes(&cluster, node(-2, true)), [Code::CertificateExpired]);
        assert_eq!(codes(&cluster, answering(1, Status::default())), []);
        let (user, secret) =
            (model::access::UserName::new("root").unwrap(), model::access::SecretDigest([1; 32]));
        let grants = [model::access::Grant::Admin].into();
        let create = model::access::UserChange::Create { user, secret, grants, redis_store: None };
        cluster.users = cluster.users.changed(&create).unwrap();
        assert_eq!(codes(&cluster, node(400, false)), []);
        assert_eq!(codes(&cluster, node(400, true)), [Code::PlainAccepted]);
        assert_eq!(codes(&cluster, answering(1, Status::default())), [Code::PlainAccepted]);
    }

    #[test]
    fn a_user_anyone_that_may_write_everything_leaves_a_cluster_open() {
        let ring = Ring::equal_slices(1, &[(NodeId(1), Zone("a".to_owned()))]);
        let open = Cluster::new("shop", Vec::new(), ring, Vec::new());
        assert!(open.is_anyones());
        assert_eq!(codes(&open, node(400, false)), [], "it has no users by choice");
        let with = |cluster: &Cluster, name: &str, rights: &[&str]| {
            let (user, secret) = (
                model::access::UserName::new(name).unwrap(),
                model::access::SecretDigest([u8::try_from(name.len()).unwrap(); 32]),
            );
            let grants = rights.iter().map(|right| right.parse().unwrap()).collect();
            let create = model::access::UserChange::Create { user, secret, grants, redis_store: None };
            Cluster { users: cluster.users.changed(&create).unwrap(), ..cluster.clone() }
        };
        let closed = with(&open, "root", &["admin"]);
        assert!(!closed.is_anyones());
        for (rights, is_open) in [
            (&["admin"][..], true),
            (&["write:*"], true),
            (&["read:*", "operate"], false),
            (&["write:*/public:"], false),
            (&["write:carts"], false),
        ] {
            let cluster = with(&closed, ANYONE, rights);
            assert_eq!(cluster.is_anyones(), is_open, "{rights:?}");
            let expected: &[Code] = if is_open { &[Code::AnyoneWrites] } else { &[] };
            assert_eq!(codes(&cluster, node(400, false)), expected, "{rights:?}");
        }
    }
}
