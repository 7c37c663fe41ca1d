//! What an order asks for, for whoever looks later at who gave it.
//!
//! Must never: name a secret or its digest, or where artifacts come from. An address may hold a password.

use std::collections::BTreeSet;

use model::access::{Grant, UserChange};
use model::balance::PolicyChange;
use model::order::Order;
use model::plan::{Consent, Wish};
use model::{ArtifactOrder, Consistency, NodeId, Role};

use super::names;
use crate::text::count;

/// What an order asks for, in a few words.
pub(crate) fn asked(order: &Order) -> String {
    match order {
        Order::Create { wish, consent } => format!("create a plan to {}{}", wished(wish), may(*consent)),
        Order::Apply { plan } => format!("apply plan {plan}"),
        Order::Abort { plan } => format!("abort plan {plan}"),
        Order::Pause { plan } => format!("pause plan {plan}"),
        Order::Resume { plan } => format!("resume plan {plan}"),
        Order::Admit { node } => format!("make {node} a member"),
        Order::Drain { node, consent } => format!("drain {node}{}", may(*consent)),
        Order::Replace { node, by, consent } => format!("replace {node} by {by}{}", may(*consent)),
        Order::Renumber { store, numbers, consent } => {
            format!("give store {store} {}{}", numbered(*numbers), may(*consent))
        }
        Order::Remove { node } => format!("remove {node}"),
        Order::Weigh { node, weight } => format!("give {node} the weight {}", weight.get()),
        Order::Cast { node, role } => cast(*node, *role),
        Order::Readdress { node, native, tls, .. } => {
            format!("call {node} at {native}{}", if *tls { " with TLS" } else { "" })
        }
        Order::CreateStore { store } | Order::CreatePlacedStore { store } => {
            format!("create store {} with {}", store.name, numbered(store.consistency))
        }
        Order::Balance { change } => balanced(change),
        Order::Artifacts { order } => of_artifacts(order),
        Order::User { user } => of_user(user),
    }
}

fn numbered(Consistency { replicas, reads_required, writes_required }: Consistency) -> String {
    format!("N={replicas}, R={reads_required} and W={writes_required}")
}

/// What an order may do without being asked again.
fn may(Consent { fewer_zones, weaker }: Consent) -> &'static str {
    match (fewer_zones, weaker) {
        (false, false) => "",
        (true, false) => ", with fewer zones",
        (false, true) => ", with weaker gets",
        (true, true) => ", with fewer zones and weaker gets",
    }
}

fn wished(wish: &Wish) -> String {
    match wish {
        Wish::Spread => "spread the data".to_owned(),
        Wish::Drain { nodes } => format!("drain {}", names(nodes)),
        Wish::Replace { node, by } => format!("replace {node} by {by}"),
        Wish::Move { partitions, from, to } => {
            format!("move {} from {from} to {to}", count(partitions.len() as u64, "partition"))
        }
        Wish::Split { partition, .. } => format!("split partition {partition}"),
        Wish::Merge { partition, other } => format!("merge partitions {partition} and {other}"),
        Wish::Join { node, .. } => format!("give {node} a part of the golden ring"),
        Wish::Double => "double the partitions".to_owned(),
        Wish::Numbers { store, numbers } => format!("give store {store} {}", numbered(*numbers)),
        Wish::Balance { placed } => format!("balance {}", count(placed.len() as u64, "partition")),
    }
}

fn cast(node: NodeId, role: Role) -> String {
    match role {
        Role::Serving => format!("let {node} take its share of the data"),
        Role::Leaving => format!("let {node} leave"),
        Role::Standby => format!("keep {node} as a standby"),
    }
}

fn balanced(change: &PolicyChange) -> String {
    match change {
        PolicyChange::Mode { mode } => format!("set the autopilot to {}", mode.word()),
        PolicyChange::Set { settings } => {
            let set: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("set the autopilot's {}", set.join(" "))
        }
        PolicyChange::Veto { node } => format!("let no standby replace {node}"),
    }
}

fn of_artifacts(order: &ArtifactOrder) -> String {
    use ArtifactOrder as Of;
    let store = order.store();
    match order {
        Of::Create { replicas, .. } => {
            format!("create the read-only store {store} with {}", count((*replicas).into(), "replica"))
        }
        Of::Keep { kept, .. } => {
            format!("keep {} of store {store}", count((*kept).into(), "earlier artifact"))
        }
        Of::Stage { number, .. } => format!("stage artifact {number} of store {store}"),
        Of::Push { number, .. } => format!("push artifact {number} of store {store}"),
        Of::Swap { number, .. } => format!("swap store {store} to artifact {number}"),
        Of::Rollback { .. } => format!("roll store {store} back"),
        Of::Delete { number, .. } => format!("delete artifact {number} of store {store}"),
        Of::Abort { number, .. } => format!("abort artifact {number} of store {store}"),
    }
}

fn of_user(change: &UserChange) -> String {
    let rights = |grants: &BTreeSet<Grant>| {
        let all: Vec<String> = grants.iter().map(ToString::to_string).collect();
        all.join(" ")
    };
    match change {
        UserChange::Create { user, grants, .. } if grants.is_empty() => format!("create user {user}"),
        UserChange::Create { user, grants, .. } => format!("create user {user} with {}", rights(grants)),
        UserChange::Grant { user, give, take, redis_store } => {
            let mut parts = Vec::new();
            if !give.is_empty() {
                parts.push(format!("give user {user} {}", rights(give)));
            }
            if !take.is_empty() {
                parts.push(format!("take {} from user {user}", rights(take)));
            }
            if let Some(store) = redis_store {
                parts.push(format!("let Redis connections of user {user} start in store {store}"));
            }
            parts.join(" and ")
        }
        UserChange::Rotate { user, at_once: false, .. } => {
            format!("give user {user} a new secret beside the old one")
        }
        UserChange::Rotate { user, at_once: true, .. } => format!("give user {user} a new secret at once"),
        UserChange::Retire { user } => format!("take the old secret of user {user} no longer"),
        UserChange::Remove { user } => format!("remove user {user}"),
    }
}

#[cfg(test)]
mod tests {
    use model::access::{SecretDigest, UserName};

    use super::*;

    #[test]
    fn an_order_is_told_without_what_it_must_not_tell() {
        let user = UserName::new("shop").unwrap();
        let grants = ["read:carts", "write:carts/u:"].iter().map(|grant| grant.parse().unwrap()).collect();
        let secret = SecretDigest([0xab; 32]);
        let create = UserChange::Create { user: user.clone(), secret, grants, redis_store: None };
        assert_eq!(asked(&Order::User { user: create }), "create user shop with read:carts write:carts/u:");
        let rotate = UserChange::Rotate { user, secret, at_once: true };
        assert_eq!(asked(&Order::User { user: rotate }), "give user shop a new secret at once");
        let consent = Consent { fewer_zones: true, weaker: false };
        let drain = Order::Drain { node: NodeId(4), consent };
        assert_eq!(asked(&drain), "drain n4, with fewer zones");
        let store = model::StoreName::new("prices").unwrap();
        let stage = ArtifactOrder::Stage {
            store,
            number: model::ArtifactNumber(7),
            manifest: model::artifacts::ManifestDigest([1; 16]),
            source: "https://user:password@host/x".to_owned(),
        };
        assert_eq!(asked(&Order::Artifacts { order: stage }), "stage artifact 7 of store prices");
    }
}
