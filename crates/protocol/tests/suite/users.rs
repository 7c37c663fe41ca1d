//! When a headmaster closes a cluster, and whom it lets in afterwards.

use std::collections::BTreeSet;

use expect_test::expect;
use model::access::{Grant, SecretDigest, UserChange, UserName};
use model::order::Order;
use model::{Node, NodeId, Zone};

use crate::headmaster::Stage;
use crate::planner::cluster;

fn create(user: &str, number: u8, grant: Grant) -> Order {
    let (user, grants) = (UserName::new(user).unwrap(), BTreeSet::from([grant]));
    let secret = SecretDigest([number; 32]);
    Order::User { user: UserChange::Create { user, secret, grants, redis_store: None } }
}

/// Three nodes, of which so many are called with TLS.
fn stage(with_tls: usize) -> Stage {
    let mut cluster = cluster(4, &["a"; 3], 3, 2);
    cluster.nodes.iter_mut().take(with_tls).for_each(|node| node.tls = true);
    Stage::of(cluster, true)
}

fn newcomer(tls: bool) -> Node {
    Node { tls, ..Node::new(NodeId(4), Zone("a".to_owned()), "h4:1", None) }
}

#[test]
fn a_cluster_is_closed_once_every_node_is_called_with_tls() {
    let mut stage = stage(2);
    stage.order(create("root", 1, Grant::Admin));
    stage.order(Order::Readdress {
        node: NodeId(3),
        native: "h3:1".to_owned(),
        resp: None,
        http: None,
        tls: true,
    });
    stage.order(create("shop", 2, Grant::Observe));
    stage.order(create("root", 3, Grant::Admin));
    stage.order(create("root", 4, Grant::Admin));
    expect![[r#"
        ask n1 n2 n3
        answer 1: refused, node-without-tls
        publish 2: n1 n2 n3, settled, order 2
        answer 2: NodeReaddressed { node: NodeId(3) }
        answer 3: refused, user-first-not-admin
        wait 500 ms to publish
        publish 3: n1 n2 n3, settled, order 4
        answer 4: UserChanged { user: UserName("root") }
        answer 5: refused, user-exists
        rest
    "#]]
    .assert_eq(&stage.play(20));
    assert!(stage.cluster.is_closed());
}

#[test]
fn nobody_without_tls_comes_into_a_closed_cluster_and_no_member_goes_back() {
    let mut stage = stage(3);
    stage.order(create("root", 1, Grant::Admin));
    stage.play(9);
    stage.registered.push(newcomer(false));
    stage.order(Order::Admit { node: NodeId(4) });
    stage.order(Order::Readdress {
        node: NodeId(3),
        native: "h3:2".to_owned(),
        resp: None,
        http: None,
        tls: false,
    });
    expect![[r#"
        answer 2: refused, node-without-tls
        answer 3: refused, node-without-tls
        rest
    "#]]
    .assert_eq(&stage.play(9));
    stage.registered.pop();
    stage.registered.push(newcomer(true));
    let said = stage.play(9);
    assert!(said.contains("publish 3: n1 n2 n3 n4"), "{said}");
}
