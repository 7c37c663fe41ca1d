//! `tontine adapter redis-cluster` with real servers: clusters that grow and shrink under load while the adapter is killed.

mod fixture;
mod resizing;

use rustix::process::Signal;
use serde_json::json;

use self::fixture::{Servers, at, is_now, is_proof, member, members, progress, state};
use crate::adapters::speaking::{Speaking, await_moving, await_some};
use crate::cluster::{TONTINE, tontine};
use crate::resp::Reply;

/// Asks for a verb until it is begun, as a controller does: on a busy machine servers may be late.
fn begin_to(verb: &str, engine: &mut Speaking, id: &str) {
    await_some(verb, || {
        let answer = engine.ask(verb, json!({ "member": id }));
        assert!(answer.get("result").is_some() || answer["error"]["code"] == -32_000, "{answer}");
        answer.get("result").map(drop)
    });
}

#[test]
fn a_redis_cluster_grows_by_one_and_shrinks_again_with_every_read_compared() {
    let mut servers = Servers::cluster(3);
    let load = servers.load(3_000);
    let words = servers.words(&["--pace=90"]);
    let check: Vec<&str> =
        ["adapter", "check", "--", TONTINE].into_iter().chain(words.iter().map(String::as_str)).collect();
    let told = tontine(&check).exits(0).text();
    assert!(told.contains("ok      evidence of a member that serves is no proof"), "{told}");
    let mut engine = Speaking::start(&words);
    assert_eq!(engine.call("describe", json!({}))["members_min"], 3);
    let address = servers.boot(&mut engine);
    let id = await_some("the new server waits", || {
        let found = at(&members(&mut engine), &address).filter(|member| member["state"] == "waiting")?;
        Some(found["id"].as_str().unwrap().to_owned())
    });
    await_some("all know that nothing is on it", || {
        let evidence = engine.call("evidence", json!({ "address": address }));
        assert!(!evidence["witnesses"].as_array().unwrap().contains(&json!(id)), "{evidence}");
        is_proof(&evidence).then_some(())
    });
    let mut joining = 0;
    let mut unproved = 0;
    begin_to("join", &mut engine, &id);
    await_moving("it serves", || {
        let now = member(&mut engine, &id);
        joining += u32::from(now["state"] == "joining");
        let evidence = engine.call("evidence", json!({ "member": id }));
        unproved += u32::from(!is_proof(&evidence));
        is_now("serving", &now)
    });
    assert!(joining > 0 && unproved > 0, "it served at once");
    assert_eq!(servers.counts(), [4096; 4]);
    let evidence = engine.call("evidence", json!({ "address": address }));
    assert!(evidence["owns_nothing"] == false && !is_proof(&evidence), "{evidence}");
    engine.refusal("forget", json!({ "member": id }), -32_000);
    let serving = at(&members(&mut engine), &address).unwrap();
    assert!(serving["measures"]["operations"]["value"].as_f64().unwrap() > 0.0, "{serving}");

    begin_to("drain", &mut engine, &id);
    assert!(!is_proof(&engine.call("evidence", json!({ "member": id }))));
    await_moving("nothing is on it", || {
        let now = member(&mut engine, &id);
        assert!(now["state"] == "draining" || now["state"] == "waiting", "{now}");
        let is_proved = is_proof(&engine.call("evidence", json!({ "member": id })));
        if is_proved { Ok(()) } else { Err(progress(&now)) }
    });
    assert_eq!(servers.counts()[3], 0);
    servers.stop(&address, Signal::KILL);
    engine.call("forget", json!({ "member": id }));
    engine.call("forget", json!({ "member": id }));
    await_some("nobody observes it", || (members(&mut engine).len() == 3).then_some(()));
    let why = engine.refusal("cancel", json!({ "member": id }), -32_001);
    assert!(why.contains("no member any more"), "{why}");
    let first = members(&mut engine)[0]["id"].clone();
    let why = engine.refusal("drain", json!({ "member": first }), -32_001);
    assert!(why.contains("needs 3"), "{why}");
    load.ends_well(&servers);
}

#[test]
fn a_drain_of_a_redis_server_is_taken_back() {
    let servers = Servers::cluster(4);
    servers.fill(6_000);
    let mut engine = Speaking::start(&servers.words(&["--pace=5", "--batch=5"]));
    let id = members(&mut engine)[0]["id"].as_str().unwrap().to_owned();
    begin_to("drain", &mut engine, &id);
    await_moving("some slots have left", || {
        let own = member(&mut engine, &id);
        assert_eq!(own["state"], "draining", "it ended between two looks: {own}");
        if own["permille"].as_u64() > Some(10) { Ok(()) } else { Err(progress(&own)) }
    });
    engine.kill();
    let mut engine = Speaking::start(&servers.words(&[]));
    begin_to("cancel", &mut engine, &id);
    await_moving("it serves its share again", || is_now("serving", &member(&mut engine, &id)));
    await_some("nothing is open", || (servers.open_slots() == 0).then_some(()));
    let counts = servers.counts();
    assert!(counts.iter().all(|count| count.abs_diff(4096) < 40), "{counts:?}");
    assert_eq!(servers.check_all(), 6_000);
}

/// `redis-cli --cluster rebalance` that was killed leaves such slots; and so may any hand.
#[test]
fn slots_that_a_hand_left_open_are_no_proof_and_are_brought_to_their_end() {
    let servers = Servers::cluster(4);
    servers.fill(2_000);
    let ids = servers.ids();
    // Slots of the first one: half moved; only sent on; only to be taken; taken, but the giver does not know.
    let hand = |server: usize, words: &str| {
        let reply = servers.call(server, &words.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{words}: {reply:?}");
        reply
    };
    let slots = servers.slots_with_keys(4);
    for slot in [slots[0], slots[1], slots[3]] {
        hand(0, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[3]));
    }
    for slot in [slots[0], slots[2], slots[3]] {
        hand(3, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    }
    let Reply::List(keys) = hand(0, &format!("CLUSTER GETKEYSINSLOT {} 1", slots[0])) else {
        panic!("no list")
    };
    let Some(Reply::Bulk(Some(key))) = keys.first() else { panic!("no key") };
    let (host, port) = (servers.host(3), servers.port);
    hand(0, &format!("MIGRATE {host} {port} {} 0 5000", String::from_utf8_lossy(key)));
    while let Reply::List(keys) = hand(0, &format!("CLUSTER GETKEYSINSLOT {} 1", slots[3])) {
        let Some(Reply::Bulk(Some(key))) = keys.first() else { break };
        hand(0, &format!("MIGRATE {host} {port} {} 0 5000", String::from_utf8_lossy(key)));
    }
    hand(3, &format!("CLUSTER SETSLOT {} NODE {}", slots[3], ids[3]));
    // One that is to be taken from a server that does not have it.
    hand(3, &format!("CLUSTER SETSLOT 9000 IMPORTING {}", ids[0]));
    let mut engine = Speaking::start(&servers.words(&[]));
    let evidence = engine.call("evidence", json!({ "address": "192.0.2.1" }));
    assert!(evidence["nothing_moves"] == false && !is_proof(&evidence), "{evidence}");
    assert!(evidence["detail"].as_str().unwrap().contains("is open at"), "{evidence}");
    assert!(servers.open_slots() >= 6, "evidence has changed something");
    members(&mut engine);
    await_some("nothing is open", || (servers.open_slots() == 0).then_some(()));
    await_some("all agree", || {
        is_proof(&engine.call("evidence", json!({ "address": "192.0.2.1" }))).then_some(())
    });
    for slot in slots {
        assert_eq!(servers.owner_of(slot), ids[3], "slot {slot}");
    }
    assert_eq!(servers.check_all(), 2_000);
}

/// A master that restarts with an older RDB marks slots so, and has keys that were deleted since.
#[test]
fn old_keys_of_a_redis_server_stay_where_they_are_and_hold_nothing_else_up() {
    let servers = Servers::cluster(4);
    servers.fill(500);
    let ids = servers.ids();
    let hand = |server: usize, words: &str| {
        let reply = servers.call(server, &words.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{words}: {reply:?}");
        reply
    };
    let slots = servers.slots_with_keys(2);
    for (slot, giver) in [(slots[0], 0), (slots[1], 2), (5_000, 1)] {
        hand(3, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[giver]));
    }
    // Of the first its owner has them, too; of the second the one that it is to come from has nothing to give.
    let (host, port) = (servers.host(3), servers.port);
    for slot in &slots {
        let Reply::List(keys) = hand(0, &format!("CLUSTER GETKEYSINSLOT {slot} 1")) else {
            panic!("no list")
        };
        let Some(Reply::Bulk(Some(key))) = keys.first() else { panic!("no key") };
        hand(0, &format!("MIGRATE {host} {port} {} 0 5000 COPY", String::from_utf8_lossy(key)));
    }
    let mut engine = Speaking::start(&servers.words(&[]));
    for slot in &slots {
        await_some("it is told", || {
            let now = members(&mut engine);
            let own = now.iter().find(|member| member["id"] == *ids[3]).unwrap();
            let words = format!("-h {host} -p {port} CLUSTER SETSLOT {slot} STABLE");
            own["detail"].as_str().is_some_and(|detail| detail.contains(&words)).then_some(())
        });
        await_some("others go on", || (servers.owner_of(5_000) == ids[3]).then_some(()));
        for slot in &slots {
            assert_eq!(servers.owner_of(*slot), ids[0]);
        }
        hand(3, &format!("CLUSTER SETSLOT {slot} STABLE"));
    }
    await_some("nothing is open", || (servers.open_slots() == 0).then_some(()));
    assert_eq!(servers.check_all(), 500);
}

#[test]
fn seeds_of_two_redis_clusters_are_refused() {
    let (servers, others) = (Servers::cluster(3), Servers::cluster(3));
    let seeds = [&servers, &others].map(|of| format!("{}:{}", of.host(0), of.port)).join(",");
    let words = ["adapter".to_owned(), "redis-cluster".to_owned(), format!("--seeds={seeds}")];
    let mut engine = Speaking::start(&words);
    for (method, params) in [("observe", json!({})), ("evidence", json!({ "address": "192.0.2.1" }))] {
        let why = engine.refusal(method, params, -32_000);
        assert!(why.contains("of another cluster") && why.contains("--seeds"), "{why}");
    }
}

#[test]
fn evidence_of_a_redis_cluster_is_no_proof_while_a_server_is_silent_and_replicas_are_refused() {
    let mut servers = Servers::cluster(4);
    let mut engine = Speaking::start(&servers.words(&[]));
    let nobody = json!({ "address": "192.0.2.1" });
    await_some("all agree", || is_proof(&engine.call("evidence", nobody.clone())).then_some(()));
    let ids = servers.ids();
    let host = servers.host(3);
    servers.signal(&host, Signal::STOP);
    let evidence = engine.call("evidence", nobody.clone());
    assert!(
        !is_proof(&evidence) && evidence["detail"].as_str().unwrap().contains("does not answer"),
        "{evidence}"
    );
    assert_eq!(state(&mut engine, &ids[3]), "down");
    engine.refusal("drain", json!({ "member": ids[0] }), -32_000);
    servers.signal(&host, Signal::CONT);
    await_some("all agree again", || is_proof(&engine.call("evidence", nobody.clone())).then_some(()));
    engine.refusal("join", json!({ "member": "banana" }), -32_602);
    engine.refusal("join", json!({ "member": "0".repeat(40) }), -32_000);
    let address = servers.boot(&mut engine);
    await_some("it waits", || at(&members(&mut engine), &address));
    await_some("it replicates", || {
        let reply = servers.call(4, &["CLUSTER", "REPLICATE", &ids[0]]);
        (!matches!(reply, Reply::Error(_))).then_some(())
    });
    await_some("replicas are refused", || {
        let answer = engine.ask("observe", json!({}));
        (answer["error"]["code"] == -32_001).then_some(())
    });
    let why = engine.refusal("evidence", nobody, -32_001);
    assert!(why.contains("is a replica"), "{why}");
}

#[test]
fn a_redis_cluster_with_a_password_is_managed_and_never_tells_it() {
    const SECRET: &str = "hunter2 \"quoted\\";
    let mut servers = Servers::with_password(3, Some(SECRET));
    servers.fill(500);
    let file = servers.path("password");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let wrong = servers.path("wrong");
    std::fs::write(&wrong, "wrong\n").unwrap();
    let why = Speaking::start(&servers.words(&[])).refusal("observe", json!({}), -32_002);
    assert!(why.contains("--password-file"), "{why}");
    let why = Speaking::start(&servers.words(&[&format!("--password-file={wrong}")])).refusal(
        "observe",
        json!({}),
        -32_002,
    );
    assert!(!why.contains("hunter2"), "{why}");
    let mut engine = Speaking::start(&servers.words(&[&format!("--password-file={file}")]));
    let script = engine.call("boot", json!({ "token": "u-1" })).to_string();
    assert!(!script.contains("hunter2"), "{script}");
    let address = servers.boot(&mut engine);
    let id = await_some("it waits", || {
        Some(at(&members(&mut engine), &address)?["id"].as_str().unwrap().to_owned())
    });
    begin_to("join", &mut engine, &id);
    await_moving("it serves", || is_now("serving", &member(&mut engine, &id)));
    assert_eq!(servers.check_all(), 500);
}

/// Not everything that listens is Redis.
#[test]
fn a_server_that_floods_hangs_or_lies_is_told_in_time() {
    use std::io::{Read, Write};
    for (says, told) in [
        (&b"$99999999999\r\n"[..], "a reply of more than"),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "no reply of Redis"),
        (b"HTTP/1.1 400\r\n", "no reply of Redis"),
        (b"$5\r\nhello\r\n", "in another form"),
        (b"", "no reply within"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let seed = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; 64];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(says);
                std::thread::spawn(move || std::thread::sleep(std::time::Duration::from_secs(5)));
                std::mem::forget(stream);
            }
        });
        let words = ["adapter".to_owned(), "redis-cluster".to_owned(), format!("--seeds={seed}")];
        let why = Speaking::start(&words).refusal("observe", json!({}), -32_000);
        assert!(why.contains(told), "{why}");
    }
    let words = ["adapter", "redis-cluster", "--seeds=127.0.0.1:1", "--", "--port", "7"];
    tontine(&words).fails_with("--port cannot be given to new machines");
}
