//! A cluster that grows by one node and shrinks again, by verbs, as a controller would do it.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::speaking::{Local, Speaking, await_some};
use crate::closed::Closed;
use crate::cluster::{Cluster, TONTINE, tontine};

/// Keys that must be there all the time.
const KEYS: usize = 300;

pub(crate) fn words(cluster: &Cluster, further: &[&str]) -> Vec<String> {
    let coordination = cluster.data().join("coordination");
    let own = [
        "adapter".to_owned(),
        "tontine".to_owned(),
        format!("--connect={}", cluster.connect()),
        format!("--coordination=dir:{}", coordination.display()),
        format!("--port={}", cluster.base + 9),
    ];
    own.into_iter().chain(further.iter().map(|&word| word.to_owned())).collect()
}

fn members(engine: &mut Speaking) -> Vec<Json> {
    engine.call("observe", json!({}))["members"].as_array().unwrap().clone()
}

fn at(members: &[Json], address: &str) -> Option<Json> {
    members.iter().find(|member| member["address"] == address).cloned()
}

/// Whether evidence would let a member be ended, as `Evidence::proves` has it.
fn proves(evidence: &Json) -> bool {
    let known = ["owns_nothing", "nothing_moves", "nothing_short"].iter().all(|one| evidence[one] == true);
    known && !evidence["witnesses"].as_array().unwrap().is_empty()
}

pub(crate) fn fill(cluster: &Cluster) -> BTreeMap<String, String> {
    let all: BTreeMap<String, String> =
        (0..KEYS).map(|number| (format!("key-{number}"), format!("value-{number}"))).collect();
    let records: String = all.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
    let file = cluster.write("records.tsv", records);
    cluster.run(&["load", &file, "--key", "1", "--value", "2"]).exits(0);
    all
}

pub(crate) fn check_all(cluster: &Cluster, all: &BTreeMap<String, String>) {
    let keys: Vec<&str> = all.keys().map(String::as_str).collect();
    for some in keys.chunks(100) {
        let answer = cluster.run(&[&["mget", "--json"], some].concat()).exits(0).json();
        let found = answer.as_array().unwrap();
        assert_eq!(found.len(), some.len(), "{answer}");
        for one in found {
            assert_eq!(one["value"], all[one["key"].as_str().unwrap()], "{one}");
        }
    }
}

/// Whether the cluster's document names this node still.
fn is_member(cluster: &Cluster, node: u64) -> bool {
    let status = cluster.run(&["status", "--json"]).json();
    status["nodes"].as_array().unwrap().iter().any(|one| one["node"] == node)
}

#[test]
fn a_cluster_grows_by_one_and_shrinks_again_with_every_key_in_place() {
    let cluster = Cluster::with(3, &["--partitions=64"]);
    let all = fill(&cluster);
    // Where the autopilot is on, it gives a new member its share after a while.
    cluster.run(&["balance", "off"]).exits(0);
    let local = Local::new(3);
    let mut provider = local.start();
    let mut engine = Speaking::start(&words(&cluster, &[]));
    let facts = engine.call("describe", json!({}));
    assert_eq!((&facts["acts_max"], &facts["members_min"]), (&json!(1), &json!(3)), "{facts}");
    let script = engine.call("boot", json!({ "token": "u-1" }))["script"].clone();
    provider.call("ensure", json!({ "token": "u-1", "type": "local", "script": script }));
    let address = await_some("the machine has an address", || {
        let listed = provider.call("list", json!({}));
        listed["instances"][0]["address"].as_str().map(str::to_owned)
    });
    let waiting = await_some("its node waits", || {
        at(&members(&mut engine), &address).filter(|member| member["state"] == "waiting")
    });
    let id = waiting["id"].as_str().unwrap().to_owned();
    // Evidence of a machine of which the engine knows no member, and of one that serves.
    let never = engine.call("evidence", json!({ "address": address }));
    assert!(proves(&never), "{never}");
    let serving = engine.call("evidence", json!({ "member": "n1" }));
    assert!(!proves(&serving) && serving["owns_nothing"] == false, "{serving}");
    assert!(!serving["witnesses"].as_array().unwrap().contains(&json!("n1")), "{serving}");

    grow(&mut engine, &id, &address);
    check_all(&cluster, &all);
    // By its address or by its name, it serves.
    for params in [json!({ "member": id }), json!({ "address": address })] {
        let evidence = engine.call("evidence", params);
        assert!(evidence["owns_nothing"] == false && !proves(&evidence), "{evidence}");
    }

    shrink(&cluster, &mut engine, &id, &address);
    provider.call("terminate", json!({ "instance": "u-1" }));
    await_some("the machine is gone", || {
        provider.call("list", json!({}))["instances"].as_array().unwrap().is_empty().then_some(())
    });
    engine.call("forget", json!({ "member": id }));
    await_some("nobody observes it", || at(&members(&mut engine), &address).is_none().then_some(()));
    assert_eq!(members(&mut engine).len(), 3);
    check_all(&cluster, &all);
}

/// Lets a node that waits join, and observes it all the way.
fn grow(engine: &mut Speaking, id: &str, address: &str) {
    // What passes is tried again, as a controller does.
    await_some("it is taken in", || {
        let answer = engine.ask("join", json!({ "member": id }));
        assert!(answer.get("result").is_some() || answer["error"]["code"] == -32_000, "{answer}");
        answer.get("result").map(drop)
    });
    let mut states = Vec::new();
    let member = await_some("it serves", || {
        let member = at(&members(engine), address)?;
        states.push(member["state"].as_str().unwrap().to_owned());
        if ["waiting", "standby"].contains(&member["state"].as_str().unwrap()) {
            // A controller repeats what is not under way.
            engine.ask("join", json!({ "member": id }));
        }
        (member["state"] == "serving").then_some(member)
    });
    states.dedup();
    assert!(
        states.iter().all(|state| ["waiting", "standby", "joining", "serving"].contains(&state.as_str())),
        "{states:?}"
    );
    for measure in ["processor", "operations", "data-bytes", "disk-bytes"] {
        assert!(member["measures"][measure]["value"].as_f64().is_some_and(|value| value >= 0.0), "{member}");
    }
}

/// Drains it. Evidence must say no for as long as the cluster's document names it.
fn shrink(cluster: &Cluster, engine: &mut Speaking, id: &str, address: &str) {
    engine.call("drain", json!({ "member": id }));
    engine.call("drain", json!({ "member": id }));
    let node = id.trim_start_matches('n').parse().unwrap();
    let mut refused = 0;
    await_some("evidence proves that it is empty", || {
        let was_member = is_member(cluster, node);
        let evidence = engine.call("evidence", json!({ "member": id }));
        let is_proved = proves(&evidence);
        assert!(!is_proved || !is_member(cluster, node), "{evidence}");
        assert!(!evidence["witnesses"].as_array().unwrap().contains(&json!(id)), "{evidence}");
        refused += u32::from(was_member && !is_proved);
        is_proved.then_some(())
    });
    assert!(refused > 0, "it was never asked while the node held something");
    let left = at(&members(engine), address).unwrap();
    assert_eq!(left["state"], "drained", "{left}");
}

#[test]
fn a_drain_is_taken_back_and_one_that_cannot_be_is_refused_for_good() {
    let cluster = Cluster::with(4, &["--partitions=64", "--replicas=3"]);
    let all = fill(&cluster);
    let mut engine = Speaking::start(&words(&cluster, &[]));
    engine.call("drain", json!({ "member": "n4" }));
    let state = |engine: &mut Speaking, id: &str| {
        let found = members(engine).into_iter().find(|member| member["id"] == id);
        found.map(|member| member["state"].as_str().unwrap().to_owned())
    };
    // It may have left at once: then it cannot come back, and says so.
    let answer = engine.ask("cancel", json!({ "member": "n4" }));
    if answer.get("result").is_some() {
        await_some("it serves again", || {
            match state(&mut engine, "n4").as_deref() {
                Some("standby") => drop(engine.ask("join", json!({ "member": "n4" }))),
                Some("serving") => return Some(()),
                _ => {}
            }
            None
        });
    } else {
        assert_eq!(answer["error"]["code"], -32_001, "{answer}");
    }
    let serving = members(&mut engine).iter().filter(|member| member["state"] == "serving").count();
    for id in ["n1", "n2"].iter().take(serving - 3) {
        await_some("it is drained", || {
            let answer = engine.ask("drain", json!({ "member": id }));
            (answer.get("result").is_some() && state(&mut engine, id).is_none_or(|state| state == "drained"))
                .then_some(())
        });
    }
    // Three copies need three members.
    let why = engine.refusal("drain", json!({ "member": "n3" }), -32_001);
    assert!(!why.is_empty());
    check_all(&cluster, &all);
}

#[test]
fn evidence_is_no_proof_while_a_member_is_silent() {
    let cluster = Cluster::with(4, &["--partitions=64", "--replicas=2"]);
    let mut engine = Speaking::start(&words(&cluster, &[]));
    let nobody = json!({ "member": "n99" });
    await_some("nothing is open", || proves(&engine.call("evidence", nobody.clone())).then_some(()));
    cluster.end_node(2, crate::cluster::Signal::KILL);
    let evidence = engine.call("evidence", nobody.clone());
    assert!(!proves(&evidence), "{evidence}");
    assert!(evidence["detail"].as_str().unwrap().contains("n2 does not answer"), "{evidence}");
    let down = members(&mut engine).into_iter().find(|member| member["id"] == "n2").unwrap();
    assert_eq!(down["state"], "down", "{down}");
    assert!(down.get("measures").is_none(), "{down}");
}

#[test]
fn the_check_passes_the_adapter_of_tontine_and_verbs_are_refused_in_words() {
    let cluster = Cluster::with(3, &["--zones=3", "--partitions=64"]);
    let adapter = words(&cluster, &["--zone=zone-1"]);
    let own = ["adapter", "check", "--", TONTINE].map(str::to_owned);
    let all: Vec<String> = own.into_iter().chain(adapter).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let answer = tontine(&all).exits(0);
    assert!(
        answer.text().contains("ok      evidence of a member that serves is no proof"),
        "{}",
        answer.text()
    );
    // Where members are in several zones, somebody must say where new ones are.
    let mut engine = Speaking::start(&words(&cluster, &[]));
    let why = engine.refusal("boot", json!({ "token": "u-1" }), -32_001);
    assert!(why.contains("--zone"), "{why}");
    engine.refusal("join", json!({ "member": "banana" }), -32_602);
    let why = engine.refusal("join", json!({ "member": "n9" }), -32_000);
    assert!(why.contains("n9"), "{why}");
    engine.refusal("forget", json!({ "member": "n1" }), -32_000);
    assert_eq!(engine.call("forget", json!({ "member": "n9" })), json!({}));
}

#[test]
fn what_the_boot_script_says_itself_cannot_be_given_again() {
    let words = ["adapter", "tontine", "--coordination=dir:/nowhere", "--", "--advertise=other:7401"];
    tontine(&words).fails_with("--advertise=other:7401 cannot be given to new machines");
}

/// A controller must tell a lack of rights from an outage, and hold.
#[test]
fn a_closed_cluster_answers_the_right_secret_only() {
    let closed = Closed::start();
    let authority = format!("--tls-authority={}", closed.tls("authority.pem").display());
    let reader = closed.user("reader", &["read:default"]);
    let with = |further: &[&str]| Speaking::start(&words(&closed.cluster, further));
    let root = format!("--secret-file={}", closed.tls("root.secret").display());
    let facts = with(&[&authority, &root]).call("describe", json!({}));
    assert_eq!(facts["members_min"], 3, "{facts}");
    for further in [&[authority.as_str()][..], &[]] {
        let why = with(further).refusal("observe", json!({}), -32_002);
        assert!(why.contains("--secret-file"), "{why}");
    }
    let mut of_reader = with(&[&authority, &format!("--secret-file={reader}")]);
    of_reader.refusal("drain", json!({ "member": "n1" }), -32_002);
    of_reader.refusal("evidence", json!({ "member": "n1" }), -32_002);
}
