//! Machines that are processes: started once, found again, ended for good, and nobody else's touched.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::speaking::{FLEET, Local, Speaking, await_some};
use crate::cluster::{TONTINE, command, tontine};

fn ensure(token: &str, script: &str) -> Json {
    json!({ "token": token, "type": "local", "script": script })
}

/// The machine of a token, once it is in this state.
fn await_state(adapter: &mut Speaking, token: &str, state: &str) -> Json {
    await_some(&format!("{token} is {state}"), || {
        let listed = adapter.call("list", json!({}));
        let found = listed["instances"].as_array().unwrap().iter().find(|one| one["token"] == token)?.clone();
        (found["state"] == state).then_some(found)
    })
}

fn await_gone(adapter: &mut Speaking, token: &str) {
    await_some(&format!("{token} is gone"), || {
        let listed = adapter.call("list", json!({}));
        let found = listed["instances"].as_array().unwrap().iter().any(|one| one["token"] == token);
        (!found).then_some(())
    });
}

fn lines(file: &Path) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

/// Each start leaves a line.
const COUNTED: &str = "echo started >> \"$MACHINE_DATA/starts\"\nexec sleep 600\n";

#[test]
fn ten_at_once_start_one_machine() {
    let local = Local::new(20);
    let mut adapters: Vec<Speaking> = (0..10).map(|_| local.start()).collect();
    // All of them run before any is asked, so that the calls meet.
    adapters.iter_mut().for_each(|adapter| drop(adapter.call("describe", json!({}))));
    for round in 0..20 {
        let token = format!("u-{round}");
        let params = json!({ "fleet": FLEET, "token": token, "type": "local", "script": COUNTED });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "ensure", "params": params }).to_string();
        adapters.iter_mut().for_each(|adapter| adapter.send(&request));
        for adapter in &mut adapters {
            assert_eq!(adapter.answer()["result"], json!({}));
        }
    }
    let starts = |round: i32| local.directory.path().join(FLEET).join(format!("u-{round}/data/starts"));
    for round in 0..20 {
        await_state(&mut adapters[0], &format!("u-{round}"), "running");
        await_some("it has begun", || (lines(&starts(round)) > 0).then_some(()));
    }
    std::thread::sleep(Duration::from_millis(500));
    let counted: Vec<usize> = (0..20).map(|round| lines(&starts(round))).collect();
    assert_eq!(counted, [1; 20], "some were started more than once");
    assert_eq!(local.list().len(), 20);
}

/// A reply that nobody gets is the rule where an adapter is killed, and the next one must find what it left.
#[test]
fn an_adapter_that_is_killed_in_mid_call_leaves_no_second_machine_and_no_half_one() {
    let local = Local::new(30);
    for round in 0..25 {
        let token = format!("u-{round}");
        let mut adapter = local.start();
        let params = json!({ "fleet": FLEET, "token": token, "type": "local", "script": COUNTED });
        // Once it runs: what is killed is a call, and no start.
        adapter.call("describe", json!({}));
        adapter.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ensure", "params": params }).to_string());
        std::thread::sleep(Duration::from_micros(150 * round));
        adapter.kill();
    }
    let mut adapter = local.start();
    for round in 0..25 {
        adapter.call("ensure", ensure(&format!("u-{round}"), COUNTED));
    }
    let mut addresses = std::collections::BTreeSet::new();
    for round in 0..25 {
        let token = format!("u-{round}");
        let machine = await_state(&mut adapter, &token, "running");
        assert!(addresses.insert(machine["address"].as_str().unwrap().to_owned()), "two have {machine}");
        let starts = local.directory.path().join(FLEET).join(&token).join("data/starts");
        await_some("it has begun", || (lines(&starts) > 0).then_some(()));
        assert_eq!(lines(&starts), 1, "{token} was started more than once");
    }
    assert_eq!(local.list().len(), 25);
}

#[test]
fn a_machine_outlives_its_adapter_and_a_token_works_once() {
    let local = Local::new(3);
    let mut adapter = local.start();
    adapter.call("ensure", ensure("u-1", COUNTED));
    await_state(&mut adapter, "u-1", "running");
    adapter.kill();
    let mut adapter = local.start();
    await_state(&mut adapter, "u-1", "running");
    adapter.call("preflight", json!({ "instance": "u-1" }));
    adapter.call("terminate", json!({ "instance": "u-1" }));
    adapter.call("terminate", json!({ "instance": "u-1" }));
    await_gone(&mut adapter, "u-1");
    adapter.call("terminate", json!({ "instance": "u-1" }));
    assert!(!local.directory.path().join(FLEET).join("u-1").exists(), "its data is there yet");
    // A controller that hung may ask once more.
    let why = adapter.refusal("ensure", ensure("u-1", COUNTED), -32_001);
    assert!(why.contains("a token works once"), "{why}");
    assert!(local.list().is_empty());
}

#[test]
fn a_machine_that_ends_by_itself_is_listed_with_what_it_said_last() {
    let local = Local::new(3);
    let mut adapter = local.start();
    adapter.call("ensure", ensure("u-1", "echo first\necho no such disk >&2\nexit 3\n"));
    let machine = await_state(&mut adapter, "u-1", "ended");
    assert!(machine["detail"].as_str().unwrap().ends_with("no such disk"), "{machine}");
    // It does not begin again.
    adapter.call("ensure", ensure("u-1", COUNTED));
    std::thread::sleep(Duration::from_millis(200));
    await_state(&mut adapter, "u-1", "ended");
    // It has a directory and an address until it is terminated.
    adapter.call("terminate", json!({ "instance": "u-1" }));
    await_gone(&mut adapter, "u-1");
    assert!(!local.directory.path().join(FLEET).join("u-1").exists(), "its data is there yet");
    adapter.refusal("ensure", ensure("u-1", COUNTED), -32_001);
}

/// Processes that do not hear, that clear their environment, or that close what they inherited.
#[test]
fn all_processes_of_a_machine_end_with_it() {
    let local = Local::new(3);
    let mut adapter = local.start();
    let script = "\
        trap '' TERM\n\
        sleep 611 &\n\
        env -i setsid sleep 612 &\n\
        (for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; exec setsid sleep 613) &\n\
        wait; wait; wait; sleep 614\n";
    adapter.call("ensure", ensure("u-1", script));
    await_state(&mut adapter, "u-1", "running");
    let data = local.directory.path().join(FLEET).join("u-1/data").canonicalize().unwrap();
    let running = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let of_it =
            all.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data));
        of_it.count()
    };
    await_some("all of them run", || (running() >= 4).then_some(()));
    adapter.call("terminate", json!({ "instance": "u-1" }));
    await_state(&mut adapter, "u-1", "ending");
    await_gone(&mut adapter, "u-1");
    assert_eq!(running(), 0);
}

#[test]
fn what_has_no_machine_json_of_ours_is_never_touched() {
    let local = Local::new(3);
    let fleet = local.directory.path().join(FLEET);
    let mut adapter = local.start();
    adapter.call("ensure", ensure("u-1", COUNTED));
    await_state(&mut adapter, "u-1", "running");
    std::fs::create_dir_all(fleet.join("bare/data")).unwrap();
    std::fs::write(fleet.join("bare/data/precious"), "x").unwrap();
    std::fs::create_dir(fleet.join("other")).unwrap();
    std::fs::write(fleet.join("other/machine.json"), "{\"name\":\"of another program\"}").unwrap();
    // Copied from one of ours: its token is another.
    std::fs::create_dir(fleet.join("copy")).unwrap();
    std::fs::copy(fleet.join("u-1/machine.json"), fleet.join("copy/machine.json")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::copy(fleet.join("u-1/machine.json"), elsewhere.path().join("machine.json")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), fleet.join("link")).unwrap();
    for strange in ["bare", "other", "copy", "link"] {
        let why = adapter.refusal("terminate", json!({ "instance": strange }), -32_001);
        assert!(why.contains("is left alone"), "{why}");
        let why = adapter.refusal("ensure", ensure(strange, COUNTED), -32_001);
        assert!(why.contains("is left alone"), "{why}");
        adapter.refusal("preflight", json!({ "instance": strange }), -32_001);
    }
    for strange in ["..", "../..", "a/b", ".ended", ""] {
        adapter.refusal("terminate", json!({ "instance": strange }), -32_602);
    }
    std::thread::sleep(Duration::from_millis(600));
    assert!(fleet.join("bare/data/precious").exists() && fleet.join("other/machine.json").exists());
    assert!(fleet.join("copy/machine.json").exists() && elsewhere.path().join("machine.json").exists());
    let listed = local.list();
    assert_eq!(listed.len(), 1, "{listed:?}");
}

#[test]
fn each_machine_has_an_address_and_no_more_are_given_than_there_are() {
    let local = Local::new(2);
    let mut adapter = local.start();
    assert_eq!(adapter.call("describe", json!({}))["quota"], 2);
    adapter.call("ensure", ensure("u-1", "test -n \"$MACHINE_ADDRESS\" && exec sleep 600\n"));
    adapter.call("ensure", ensure("u-2", COUNTED));
    let why = adapter.refusal("ensure", ensure("u-3", COUNTED), -32_000);
    assert!(why.contains("--addresses"), "{why}");
    await_state(&mut adapter, "u-1", "running");
    adapter.call("terminate", json!({ "instance": "u-1" }));
    await_gone(&mut adapter, "u-1");
    adapter.call("ensure", ensure("u-3", COUNTED));
    await_state(&mut adapter, "u-3", "running");
}

#[test]
fn a_cap_is_kept_or_its_lack_is_told() {
    let mut local = Local::new(3);
    local.further.push("--type=half:price=0.1,processors=0.5".to_owned());
    let mut adapter = local.start();
    let facts = adapter.call("describe", json!({}));
    assert_eq!(facts["types"][0]["processors_milli"], 500, "{facts}");
    let warned = facts["warnings"].as_array().is_some_and(|all| !all.is_empty());
    // What a process was given of processors in a second tells.
    let busy = "i=0; while :; do i=$((i + 1)); done\n";
    adapter.call("ensure", json!({ "token": "u-1", "type": "half", "script": busy }));
    await_state(&mut adapter, "u-1", "running");
    let started = local.directory.path().join(FLEET).join("u-1/started");
    let process = std::fs::read_to_string(started).unwrap().trim().to_owned();
    let ran = || {
        let told = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
        told.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let (before, began) = (ran(), std::time::Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let share = (ran() - before) as f64 / began.elapsed().as_nanos() as f64;
    let group = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    assert_eq!(group.contains("tontine-machines"), !warned, "{group}");
    assert!(warned || share < 0.6, "it had {share} of a processor");
}

#[test]
fn the_check_passes_the_local_adapter_and_convicts_worse_ones() {
    let local = Local::new(3);
    let dir = format!("--dir={}", local.directory.path().display());
    let words =
        ["adapter", "check", "--type=local", "--", TONTINE, "adapter", "local", &dir, &local.further[0]];
    let answer = tontine(&words).exits(0);
    assert!(answer.text().contains("ok      a token has one machine"), "{}", answer.text());
    assert!(local.list().is_empty(), "it left a machine");
    let check = |script: &str| {
        let words = ["adapter", "check", "--answer-within=2s", "--", "sh", "-c", script];
        let answer = crate::cluster::Answer::of(command(&words).output().unwrap()).exits(1);
        answer.text()
    };
    let silent = check("cat > /dev/null");
    assert!(silent.contains("FAILED  it describes itself: no answer within 2 s"), "{silent}");
    let gone = check("exit 0");
    assert!(gone.contains("FAILED  it describes itself"), "{gone}");
    let same = "while read line; do echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}'; done";
    let same = check(same);
    assert!(same.contains("FAILED  a line that is no JSON"), "{same}");
    let chatty = format!("echo hello; exec {TONTINE} adapter local {dir}");
    let chatty = check(&chatty);
    assert!(
        chatty.contains("FAILED  nothing but answers on standard output: it wrote a line of 5 bytes"),
        "{chatty}"
    );
    assert!(chatty.contains("1 of"), "{chatty}");
    // What it writes may be a secret, whether it is no answer, or one of another form.
    for result in ["\"hunter2\"", "{\"types\":[],\"name\":\"p\",\"protocol\":\"hunter2\"}"] {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":'$n',\"result\":{result}}}");
        let answer = format!("n=0; while read line; do n=$((n+1)); echo hunter2; echo '{line}'; done");
        let said = check(&answer);
        assert!(said.contains("FAILED  it describes itself"), "{said}");
        assert!(said.contains("it wrote a line of 7 bytes"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}
