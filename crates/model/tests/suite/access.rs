//! Users: what they may do, how they change, and what of them documents hold.

use std::collections::BTreeSet;

use model::access::{Grant, Right, SecretDigest, UserChange, UserError, UserName, Users};
use model::{Cluster, Consistency, Node, NodeId, Ring, Store, StoreName, Zone};

fn cluster() -> Cluster {
    let node = Node::new(NodeId(1), Zone("a".to_owned()), "h1:1", None);
    let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("carts").unwrap(), consistency).unwrap();
    let ring = Ring::equal_slices_listing(4, &[(node.id, node.zone.clone())], 1);
    Cluster::new("shop", vec![node], ring, vec![store])
}

fn name(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

fn grants(text: &str) -> BTreeSet<Grant> {
    text.split_whitespace().map(|grant| grant.parse().unwrap()).collect()
}

fn secret(number: u8) -> SecretDigest {
    SecretDigest([number; 32])
}

fn create(user: &str, number: u8, rights: &str) -> UserChange {
    UserChange::Create { user: name(user), secret: secret(number), grants: grants(rights), redis_store: None }
}

/// The users after these changes, each of which must be possible.
fn users(changes: &[UserChange]) -> Users {
    changes.iter().fold(Users::default(), |users, change| users.changed(change).unwrap())
}

#[test]
fn a_grant_covers_its_right_its_store_and_its_prefix_and_nothing_else() {
    let may = |grant: &str, right, store, key: Option<&str>| {
        grant.parse::<Grant>().unwrap().covers(right, store, key.map(str::as_bytes))
    };
    assert!(may("read:carts", Right::Read, "carts", Some("k")));
    assert!(!may("read:carts", Right::Read, "orders", Some("k")));
    assert!(!may("read:carts", Right::Write, "carts", Some("k")));
    assert!(may("write:*", Right::Write, "orders", Some("k")));
    assert!(may("read:carts/u:", Right::Read, "carts", Some("u:7")));
    assert!(!may("read:carts/u:", Right::Read, "carts", Some("v:7")));
    assert!(!may("read:carts/u:", Right::Read, "carts", Some("u")));
    // About no key in particular, a right to some keys is none.
    assert!(!may("read:carts/u:", Right::Read, "carts", None));
    assert!(may("scan:carts", Right::Scan, "carts", None) && !may("scan:carts", Right::Read, "carts", None));
    assert!(may("operate", Right::Observe, "", None) && !may("observe", Right::Operate, "", None));
    assert!(!may("operate", Right::Read, "carts", Some("k")) && !may("operate", Right::Admin, "", None));
    for right in [Right::Read, Right::Write, Right::Scan, Right::Observe, Right::Operate, Right::Admin] {
        assert!(may("admin", right, "carts", Some("k")), "{right}");
    }
}

#[test]
fn grants_are_written_as_they_are_read_and_what_is_none_is_refused() {
    for text in ["read:carts", "write:*", "read:carts/u:/x", "scan:carts", "observe", "operate", "admin"] {
        assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
    }
    let long = format!("read:carts/{}", "x".repeat(129));
    for text in
        ["", "read", "read:", "read:Carts", "scan:carts/u:", "fly:carts", "admin:carts", "ADMIN", &long]
    {
        assert!(text.parse::<Grant>().is_err(), "{text}");
    }
    for text in ["", "default", "Root", "1a", "a b", &"a".repeat(65)] {
        assert!(UserName::new(text).is_err(), "{text}");
    }
}

#[test]
fn a_secret_is_replaced_under_load_and_a_stolen_one_at_once() {
    let begun = [create("root", 1, "admin")];
    let rotate = |number, at_once| UserChange::Rotate { user: name("root"), secret: secret(number), at_once };
    let kept = |users: &Users| users.get("root").unwrap().secrets.clone();
    let both = users(&[begun[0].clone(), rotate(2, false)]);
    assert_eq!(kept(&both), [secret(2), secret(1)]);
    let refused = both.changed(&rotate(3, false));
    assert_eq!(refused, Err(UserError::TwoSecrets { user: name("root") }), "programs may use either");
    assert_eq!(kept(&both.changed(&rotate(3, true)).unwrap()), [secret(3)]);
    assert_eq!(kept(&both.changed(&UserChange::Retire { user: name("root") }).unwrap()), [secret(2)]);
    assert_eq!(both.changed(&rotate(1, false)), Err(UserError::SecretTaken));
    assert_eq!(both.holder(|digest| *digest == secret(1)).unwrap().0.as_str(), "root");
    assert!(both.holder(|digest| *digest == secret(9)).is_none());
}

#[test]
fn a_closed_cluster_keeps_an_administrator() {
    let refused = |users: &Users, change: &UserChange| users.changed(change).unwrap_err();
    let none = Users::default();
    let user = name("shop");
    assert_eq!(refused(&none, &create("shop", 1, "read:*")), UserError::FirstNotAdmin { user: user.clone() });
    let both = users(&[create("root", 1, "admin"), create("shop", 2, "read:carts")]);
    let root = name("root");
    let last = UserError::LastAdmin { user: root.clone() };
    assert_eq!(refused(&both, &UserChange::Remove { user: root.clone() }), last);
    let take = UserChange::Grant {
        user: root.clone(),
        give: grants("observe"),
        take: grants("admin"),
        redis_store: None,
    };
    assert_eq!(refused(&both, &take), last);
    let give = UserChange::Grant {
        user: user.clone(),
        give: grants("admin"),
        take: grants("read:carts"),
        redis_store: None,
    };
    let two = both.changed(&give).unwrap();
    assert_eq!(two.get("shop").unwrap().grants, grants("admin"));
    assert!(two.changed(&UserChange::Remove { user: root }).is_ok());
    assert_eq!(refused(&both, &create("shop", 3, "")), UserError::Exists { user });
    assert_eq!(
        refused(&both, &UserChange::Retire { user: name("x") }),
        UserError::Unknown { user: name("x") }
    );
}

#[test]
fn users_and_rights_have_a_limit() {
    let mut all = users(&[create("root", 0, "admin")]);
    for number in 1..256_u16 {
        let [high, low] = number.to_be_bytes();
        let mut digest = [7; 32];
        digest[..2].copy_from_slice(&[high, low]);
        let user = name(&format!("u{number}"));
        let secret = SecretDigest(digest);
        let grants = BTreeSet::new();
        all = all.changed(&UserChange::Create { user, secret, grants, redis_store: None }).unwrap();
    }
    assert_eq!(all.changed(&create("more", 9, "")), Err(UserError::TooMany));
    let many: Vec<String> = (0..33).map(|number| format!("read:carts/{number}")).collect();
    let give = UserChange::Grant {
        user: name("u1"),
        give: grants(&many.join(" ")),
        take: BTreeSet::new(),
        redis_store: None,
    };
    assert_eq!(all.changed(&give), Err(UserError::TooManyGrants { user: name("u1") }));
}

/// A program that knows no users would serve anyone.
#[test]
fn a_document_with_users_has_its_own_form_and_one_without_is_as_before() {
    let open = cluster();
    let text = serde_json::to_string(&open).unwrap();
    assert!(text.starts_with(r#"{"form":5,"#) && !text.contains("users"), "{text}");
    let closed = open.with_users(&create("root", 171, "admin")).unwrap();
    assert!(closed.is_closed() && !open.is_closed());
    assert_eq!(closed.generation.0, open.generation.0 + 1);
    let text = serde_json::to_string(&closed).unwrap();
    let digest = "ab".repeat(32);
    let users = format!(r#""users":{{"root":{{"secrets":["{digest}"],"grants":["admin"]}}}}"#);
    assert!(text.starts_with(r#"{"form":6,"#) && text.contains(&users), "{text}");
    assert_eq!(serde_json::from_str::<Cluster>(&text).unwrap(), closed);
    let change = closed.change_from(&open);
    assert_eq!(Cluster::handed_over(&change, &open), Some(closed.clone()));
    for nonsense in
        [text.replace(&digest, "ab"), text.replace("\"admin\"", "\"fly\""), text.replace("root", "Root")]
    {
        assert!(serde_json::from_str::<Cluster>(&nonsense).is_err());
    }
}

#[test]
fn anyone_has_rights_and_no_secret() {
    let begun = users(&[create("anyone", 1, "admin"), create("root", 2, "admin")]);
    assert!(begun.get("anyone").unwrap().secrets.is_empty());
    assert!(begun.holder(|digest| *digest == secret(1)).is_none());
    let rotate = UserChange::Rotate { user: name("anyone"), secret: secret(3), at_once: true };
    assert_eq!(begun.changed(&rotate), Err(UserError::NoSecrets));
    let closed = begun.changed(&UserChange::Remove { user: name("anyone") }).unwrap();
    assert!(closed.get("anyone").is_none() && closed.get("root").unwrap().is_admin());
}
