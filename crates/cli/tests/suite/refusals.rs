//! What is refused at once, with words that say what to do.

use std::net::TcpListener;

use rustix::process::Signal;

use crate::cluster::{Answer, Cluster, Process, command, exists, free_port_base, tontine};
use crate::observe::until;
use crate::resp::{Redis, Reply};

/// Nobody heard a signal before the node served: with a long session it went on for twenty minutes.
#[test]
fn a_start_that_waits_ends_at_once_when_it_is_told_to() {
    let cluster = Cluster::with(1, &[]);
    let coordination = format!("--coordination={}", cluster.data().join("coordination").display());
    let listen = format!("--listen=127.0.0.1:{}", free_port_base());
    for (number, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        // A copy waits for the process of the directory.
        let copy = cluster.folder.path().join(format!("copy-{number}"));
        crate::disks::copy_directory(&cluster.data().join("node-1"), &copy);
        let data = format!("--data-dir={}", copy.display());
        let words = ["serve", &listen, &coordination, &data];
        let log = cluster.folder.path().join(format!("copy-{number}.stderr"));
        let mut waiting = Process::start(&mut command(&words), log);
        until("it waits", || waiting.stderr(), |said| said.contains("waits for the registration"));
        assert_eq!(waiting.stop(signal), Some(0), "{}", waiting.stderr());
    }
}

/// It once waited without a word for ten seconds, and took the id over, with nothing in its directory, when the node was
/// restarted meanwhile.
#[test]
fn a_second_node_with_the_id_of_a_running_one_is_refused_at_once_and_never_takes_it_over() {
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["put", "k", "v"]).exits(0);
    let coordination = cluster.data().join("coordination").display().to_string();
    let listen = format!("--listen=127.0.0.1:{}", free_port_base());
    let serve = ["serve", "--id=3", &listen, "--coordination", &coordination, "--data-dir"];
    let duplicate = |data: &str| command(&[&serve[..], &[data]].concat());
    let began = std::time::Instant::now();
    let second = Answer::of(duplicate(&cluster.file("second")).output().unwrap());
    second.fails_until_later_with("two nodes with one id");
    second.fails_until_later_with(&cluster.native(3));
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "it waits for what it may not have");

    // A copy passes for the node's own directory, so it waits for a while, but says so at once.
    let copy = cluster.folder.path().join("copy");
    crate::disks::copy_directory(&cluster.data().join("node-3"), &copy);
    let mut waiting = Process::start(
        &mut duplicate(&copy.display().to_string()),
        cluster.folder.path().join("copy.stderr"),
    );
    until("it says that it waits", || waiting.stderr(), |said| said.contains("waits for the registration"));
    waiting.wait();
    assert!(waiting.stderr().contains("two nodes with one id"), "{}", waiting.stderr());

    cluster.end_node(3, Signal::TERM);
    cluster.start_node_again(3);
    let nodes = cluster.json(&["status"])["nodes"].clone();
    assert_eq!(nodes[2]["answers"], true, "{nodes}");
    cluster.run(&["get", "k"]).exits(0);
}

#[test]
fn a_node_that_the_cluster_does_not_know_is_refused() {
    let cluster = Cluster::start();
    let coordination = cluster.data().join("coordination").display().to_string();
    tontine(&["serve", "--id=9", "--data-dir", &cluster.file("ninth"), "--coordination", &coordination])
        .fails_with("has no member n9");
    let empty = cluster.file("empty");
    tontine(&["serve", "--id=1", "--data-dir", &cluster.file("first"), "--coordination", &empty])
        .fails_until_later_with("holds no cluster");
    assert!(!exists(&empty), "what cannot be leaves no trace");
}

#[test]
fn a_mistake_is_explained_by_what_was_typed_and_not_by_the_environment() {
    let mistaken = |words: &[&str]| {
        let output =
            command(words).env("TONTINE_CONNECT", "127.0.0.1:1").env("TONTINE_STORE", "s").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = mistaken(&["get"]);
    assert!(said.contains("Usage: tontine get ") && !said.contains("--connect"), "{said}");
    let said = mistaken(&["events", "--kind=peer-gone"]);
    assert!(said.contains("invalid value 'peer-gone'") && said.contains("peer-down"), "{said}");
    let put = "there is no command `set`; to write a key, use `tontine put KEY VALUE`";
    assert_eq!(mistaken(&["set", "k", "v"]), format!("tontine: {put}\n"));
    let repair =
        "`tontine repair` needs a command: status, start, stop; `tontine repair --help` explains them";
    assert_eq!(mistaken(&["repair"]), format!("tontine: {repair}\n"));
    let error: serde_json::Value = serde_json::from_str(&mistaken(&["repair", "--json"])).unwrap();
    assert_eq!(error["error"]["kind"], "usage");
    assert_eq!(error["error"]["message"], repair);
    assert!(
        mistaken(&[]).starts_with("A key-value store"),
        "the program's name alone is answered with its help"
    );
}

#[test]
fn a_data_directory_serves_one_process() {
    let running = Cluster::start();
    let mut other = Cluster::start();
    other.stop();
    let data = running.data().join("node-1").display().to_string();
    let coordination = other.data().join("coordination").display().to_string();
    let refused = tontine(&["serve", "--data-dir", &data, "--coordination", &coordination]);
    refused
        .fails_until_later_with(&format!("the data directory {data} is in use by another process (process "));
    running.run(&["put", "k", "v"]).exits(0);
}

/// The advice once was to start a cluster, whatever address had been mistyped.
#[test]
fn addresses_that_do_not_answer_as_nodes_are_named_with_what_they_answered_and_are_to_be_checked() {
    let cluster = Cluster::start();
    let addresses = format!("127.0.0.1:1,{}", cluster.resp(1));
    let refused = tontine(&["get", "k", "--connect", &addresses]);
    refused.fails_with("127.0.0.1:1 refused the connection");
    refused.fails_with(&format!("{}: the peer speaks RESP (Redis)", cluster.resp(1)));
    refused.fails_with("next: Check the addresses in --connect (or TONTINE_CONNECT)");
    assert!(!refused.stderr.contains("starts a cluster"), "{}", refused.stderr);
    let refused = command(&["get", "k"]).env("TONTINE_CONNECT", "127.0.0.1:1").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("next: Check the addresses in --connect"), "{said}");
}

/// It said to ask another node, of which all had been asked.
#[test]
fn a_put_that_wants_more_acknowledgements_than_there_are_nodes_says_whose_are_missing() {
    let cluster = Cluster::with(3, &[]);
    cluster.end_node(3, Signal::KILL);
    // Before the others know, it is begun, and in doubt.
    until("the others know", || cluster.run(&["put", "k", "v", "-w3"]).code, |&code| code == 2);
    let refused = cluster.run(&["put", "k", "v", "-w3"]);
    refused.fails_with("3 must acknowledge the write, and it gets no answer from n3");
    refused.fails_with("`tontine put -w` can require fewer acknowledgements");
    cluster.run(&["put", "k", "v", "-w2"]).exits(0);
}

#[test]
fn a_second_dev_on_one_directory_names_the_directory_and_the_process_that_has_it() {
    let cluster = Cluster::start();
    let words: Vec<&str> = cluster.arguments.iter().map(String::as_str).collect();
    let refused = tontine(&words);
    refused.fails_with(&cluster.data().display().to_string());
    refused.fails_with(&format!("(process {})", cluster.dev.id()));
    cluster.run(&["put", "k", "v"]).exits(0);
}

#[test]
fn a_data_directory_belongs_to_one_node() {
    let mut cluster = Cluster::start();
    cluster.stop();
    let data = cluster.data().join("node-1").display().to_string();
    let coordination = cluster.data().join("coordination").display().to_string();
    tontine(&["serve", "--id=2", "--data-dir", &data, "--coordination", &coordination])
        .fails_with("belongs to n1, and --id says n2");
    cluster.start_again();
    cluster.run(&["put", "k", "v"]).exits(0);
}

/// A slip of the keyboard: it once passed for a new disk, so the node refilled itself there, and `doctor` advised to
/// start it with that directory for ever.
#[test]
fn a_directory_of_other_things_is_no_new_disk_and_the_node_below_it_is_named() {
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["put", "k", "v"]).exits(0);
    cluster.end_node(2, Signal::TERM);
    let coordination = cluster.data().join("coordination").display().to_string();
    let start =
        |data: &str| tontine(&["serve", "--id=2", "--data-dir", data, "--coordination", &coordination]);
    let parent = cluster.data().display().to_string();
    let refused = start(&parent);
    refused.fails_with(
        r#"the data directory belongs to no node but is not empty: it holds "coordination", "dev.lock", "log" and 3 more"#,
    );
    refused.fails_with(r#"n2 of cluster "dev" in "node-2""#);
    refused.fails_with(&parent);
    assert!(!exists(&cluster.data().join("lock").display().to_string()), "what is refused leaves no trace");
    start(&coordination).fails_with("with an empty one");
    let file = cluster.write("notes.txt", "text");
    start(&file).fails_with("notes.txt is a file");
    tontine(&["dev", "--data-dir", &file]).fails_with("notes.txt is a file");
    cluster.start_node_again(2);
    cluster.run(&["get", "k"]).exits(0);
}

#[test]
fn a_data_directory_of_a_newer_version_is_left_alone() {
    let mut cluster = Cluster::start();
    cluster.stop();
    let file = cluster.data().join("node-1/identity");
    let newer = std::fs::read_to_string(&file).unwrap().replace("tontine-identity 2", "tontine-identity 3");
    std::fs::write(&file, &newer).unwrap();
    let words: Vec<&str> = cluster.arguments.iter().map(String::as_str).collect();
    tontine(&words).fails_with("has format 3, and this program reads format 2");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), newer);
}

/// Is refused because this process has a port. The child that another test has just made has it, too, until it runs its
/// program, and may be named instead.
fn refused_for_us(words: &[&str], which: &str) -> Answer {
    let holder = format!("{which} is in use by process {} (", std::process::id());
    let named = |answer: &Answer| answer.stderr.contains(&holder);
    let refused = until("a refusal that names this process", || tontine(words), named);
    refused.fails_with(&holder);
    refused
}

/// For a cluster that exists: its ports are settled, so the message names who has them.
#[test]
fn a_port_in_use_is_named() {
    let mut cluster = Cluster::start();
    cluster.stop();
    let words: Vec<&str> = cluster.arguments.iter().map(String::as_str).collect();
    for address in [cluster.native(2), cluster.resp(3)] {
        let _held = TcpListener::bind(&address).unwrap();
        let refused = refused_for_us(&words, &format!("address {address}"));
        refused.fails_with("; stop that process: a cluster keeps the ports that it was created with");
    }
    cluster.start_again();
}

#[test]
fn a_new_cluster_on_a_taken_port_says_who_has_it_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (base, data) = (free_port_base(), folder.path().join("data"));
    let (data_dir, port_base) = (format!("--data-dir={}", data.display()), format!("--port-base={base}"));
    let dev = ["dev", &data_dir, &port_base];
    for (port, door) in [
        (base + 2, "the native protocol at node 2"),
        (base + 101, "Redis clients at node 1"),
        (base + 203, "HTTP clients at node 3"),
    ] {
        let held = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let refused = refused_for_us(&dev, &format!("port {port} on 127.0.0.1, for {door},"));
        refused.fails_with(&format!(
            "choose another --port-base PORT (this one needs {} to {}, {} to {} and {} to {})",
            base + 1,
            base + 3,
            base + 101,
            base + 103,
            base + 201,
            base + 203
        ));
        assert!(!data.exists(), "a refused cluster leaves no directory");
        drop(held);
    }
    let mut process = Process::start(&mut command(&dev), folder.path().join("stderr"));
    process.await_line("Ctrl-C stops the cluster");
    assert_eq!(process.stop(Signal::INT), Some(0), "{}", process.stderr());
}

#[test]
fn a_cluster_that_cannot_be_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data_dir = format!("--data-dir={}", data.display());
    for (arguments, words) in [
        (&["--nodes=3", "--zones=5"][..], "5 zones need at least 5 nodes, and there are 3"),
        (&["--zones=4"], "raise --nodes or lower --zones"),
        (
            &["--nodes=2", "--consistency=3,2,2"],
            "3 replicas need at least 3 nodes, and there are 2; raise --nodes",
        ),
        (&["--replicas=4"], "4 replicas need at least 4 nodes, and there are 3; raise --nodes"),
        (&["--replicas=0"], "at least 1 replica of each key; raise --replicas"),
        (&["--nodes=65"], "65 is not in 1..=64"),
        (&["--zones=0"], "0 is not in 1..=64"),
        (&["--consistency=3,4,2"], "--consistency"),
    ] {
        tontine(&[&["dev", &data_dir], arguments].concat()).fails_with(words);
        assert!(!data.exists(), "{arguments:?} left a directory");
    }
}

/// Each machine made a directory of that name, and had its own cluster.
#[test]
fn servers_of_an_ensemble_without_their_scheme_make_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["cluster", "create", "--name", "shop", "--nodes", "1"][..], &["headmaster"], &["serve"]] {
        let mut command = crate::cluster::command(words);
        command.args(["--coordination", "zk1:2181,zk2:2181/shop"]).current_dir(folder.path());
        let answer = Answer::of(command.output().unwrap());
        answer.fails_with("write zookeeper://zk1:2181,zk2:2181/shop, or dir:PATH for a directory");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{words:?}");
    }
}

#[test]
fn an_unknown_store_is_named_with_the_known_ones() {
    let cluster = Cluster::start();
    let unknown = "store \"nope\" does not exist; the stores are: default, siblings";
    cluster.run(&["get", "a", "-s", "nope"]).fails_with(unknown);
    cluster.run(&["export", "-s", "nope"]).fails_with(unknown);
    let Reply::Error(refused) = Redis::connect(&cluster.resp(1)).call(&[b"TONTINE.STORE", b"nope"]) else {
        panic!("a store that is none was chosen");
    };
    assert!(refused.contains("nope"), "{refused}");
}

#[test]
fn more_siblings_than_the_store_keeps_are_refused_and_none_is_lost() {
    let cluster = Cluster::with(1, &[]);
    let mut redis = Redis::connect(&cluster.resp(1));
    redis.call(&[b"TONTINE.STORE", b"siblings"]);
    for number in 0..64 {
        let reply = redis.call(&[b"TONTINE.PUT", b"cart", b"", format!("item {number}").as_bytes()]);
        assert!(!matches!(reply, Reply::Error(_)), "sibling {number}: {reply:?}");
    }
    let Reply::Error(refused) = redis.call(&[b"TONTINE.PUT", b"cart", b"", b"one more"]) else {
        panic!("a sibling over the limit was taken");
    };
    assert!(refused.contains("siblings"), "{refused}");
    let on_siblings = |words: &[&str]| cluster.run(&[words, &["-s", "siblings"]].concat());
    on_siblings(&["put", "cart", "one more", "--context", ""]).fails_with("too-many-siblings");
    on_siblings(&["get", "cart", "--raw"]).fails_with("64 siblings");
    let kept = on_siblings(&["get", "cart", "--json"]).exits(0).json();
    assert_eq!(kept["siblings"].as_array().unwrap().len(), 64);
    on_siblings(&["resolve", "cart", "--lines"]).exits(0);
    on_siblings(&["put", "cart", "one more", "--context", ""]).exits(0);
}

#[test]
fn keys_and_values_over_the_limits_are_refused_and_at_the_limits_kept() {
    let cluster = Cluster::start();
    let long = "k".repeat(4097);
    cluster.run(&["put", &long, "v"]).fails_with("key of 4097 bytes is over the limit of 4096 bytes");
    cluster.run(&["put", "", "v"]).fails_with("key is empty");
    cluster.run(&["put", &long[..4096], "v"]).exits(0);

    let put_from_stdin = |bytes: usize| {
        let path = cluster.write("value", vec![b'v'; bytes]);
        let mut command = cluster.command(&["put", "large", "-"]);
        command.stdin(std::fs::File::open(path).unwrap()).output().unwrap()
    };
    let refused = put_from_stdin((16 << 20) + 1);
    assert_eq!(refused.status.code(), Some(2));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("value-too-large") && words.contains("16777216"), "{words}");
    cluster.run(&["get", "large"]).exits(1);
    let mut redis = Redis::connect(&cluster.resp(1));
    let too_long = redis.call(&[b"SET", long.as_bytes(), b"v"]);
    assert!(matches!(&too_long, Reply::Error(error) if error.contains("4096")), "{too_long:?}");
    let too_large = redis.call(&[b"SET", b"large", &vec![b'v'; (16 << 20) + 1]]);
    assert!(matches!(&too_large, Reply::Error(error) if error.contains("16777216")), "{too_large:?}");
    assert_eq!(put_from_stdin(16 << 20).status.code(), Some(0));
    assert_eq!(cluster.run(&["get", "large"]).exits(0).stdout.len(), (16 << 20) + 1);
}

/// Fills the disk of a cluster of one node, after whatever makes it small.
fn fill(cluster: &Cluster, make_small: impl FnOnce()) {
    cluster.run(&["put", "early", "kept"]).exits(0);
    let value = cluster.write("value", vec![b'v'; 8 << 20]);
    let put = |number: usize| {
        let mut command = cluster.command(&["put", &format!("k{number}"), "-"]);
        command.stdin(std::fs::File::open(&value).unwrap()).output().unwrap()
    };
    assert!(put(0).status.success());
    make_small();
    // The write that meets the end of the disk itself may come to be when there is room: its outcome is unknown.
    let refused = (1..64).map(put).find(|output| !matches!(output.status.code(), Some(0 | 3)));
    let refused = refused.expect("the disk fills up");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("disk") && words.contains("full"), "{words}");
    assert_eq!(cluster.run(&["get", "early"]).exits(0).text(), "kept\n");
    assert_eq!(cluster.run(&["get", "k0"]).exits(0).stdout.len(), (8 << 20) + 1);
}

#[test]
fn a_full_disk_refuses_writes_and_still_answers_gets() {
    let cluster = Cluster::with(1, &[]);
    // No file may have more than 20 MiB: every write beyond is refused by the system, whoever runs this test.
    fill(&cluster, || cluster.limit_files(1, Some(20 << 20)));
    cluster.limit_files(1, None);
    until("there is room again", || cluster.run(&["put", "late", "kept"]).code, |&code| code == 0);
    // A real small disk too, where this test may mount one: writes end at the reserve, before the system refuses any.
    let folder = tempfile::tempdir().unwrap();
    if let Some(disk) = SmallDisk::mount(folder.path()) {
        let data = format!("--data-dir={}", disk.0.join("data").display());
        let cluster = Cluster::with(1, &[&data]);
        fill(&cluster, || {});
    }
}

/// The table of conditions in the reference is worth as much as the tests that it names.
#[test]
fn each_condition_of_the_reference_names_a_test_that_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read =
        |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let document = read("docs/reference/errors.md");
    let (_, table) = document.split_once("## Bad input and limits").expect("the reference has the table");
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cell = row.rsplit('|').nth(1).unwrap();
        let quoted: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if let [test, file] = quoted[..]
            && !test.starts_with("./")
        {
            assert!(read(file).contains(&format!(" {test}(")), "{file} has no {test}");
            named += 1;
        }
    }
    assert!(named >= 20, "{named} tests named");
}

/// A tmpfs of 320 MiB: the engine keeps a reserve of 128.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(folder: &std::path::Path) -> Option<SmallDisk> {
        let disk = folder.join("disk");
        std::fs::create_dir(&disk).unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=320m", "tontine-test"])
            .arg(&disk)
            .output();
        mount.ok()?.status.success().then_some(SmallDisk(disk))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}
