//! Pipelines of one connection: side by side where no key is shared, together where they arrive together, in order
//! where it can be seen.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{NodeId, Store};

use crate::cluster::{PATIENCE, RunningCluster, store};
use crate::support::Connection;

/// Two nodes with one replica of each key, of which the second takes everything and answers nothing: keys here answer,
/// keys there do not.
struct HalfSilent {
    cluster: RunningCluster,
}

impl HalfSilent {
    async fn start() -> HalfSilent {
        let strict = Store { sloppy: false, ..store(1, 1, 1) };
        HalfSilent { cluster: RunningCluster::start((2, 1), strict, |_| {}).await }
    }

    /// This many keys that this node holds, or that the silent one does.
    fn keys(&self, here: bool, count: usize) -> Vec<String> {
        let view = self.cluster.nodes[0].replica().view().get();
        let local = &view.stores()[0];
        let is_here = |key: &String| view.route(local, key.as_bytes()).preference.replicas()[0] == NodeId(1);
        let named = (0..).map(|number| format!("key-{number}"));
        named.filter(|key| is_here(key) == here).take(count).collect()
    }

    /// Waits until another connection sees the value.
    async fn sees(&self, key: &str, value: &str) {
        let mut other = self.cluster.redis(0);
        let seen = async {
            loop {
                other.send(format!("EXISTS {key}\r\n").as_bytes()).await;
                if other.lines(1).await == [":1"] {
                    return other
                        .ask(&format!("GET {key}"), &format!("${}\r\n{value}\r\n", value.len()))
                        .await;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE / 4, seen)
            .await
            .expect("the write waits for a key that does not answer");
    }
}

async fn in_time(redis: &mut Connection, expected: &str) {
    let answered = tokio::time::timeout(PATIENCE / 4, redis.expect(expected)).await;
    answered.expect("the answer waits for a later command");
}

#[tokio::test]
async fn an_answer_is_sent_as_soon_as_all_before_it_have_been() {
    let nodes = HalfSilent::start().await;
    let (here, there) = (nodes.keys(true, 3), nodes.keys(false, 1));
    let mut redis = nodes.cluster.redis(0);
    let [a, b, c] = &here[..] else { unreachable!("three keys were asked for") };
    let slow = &there[0];
    // All of it comes at once.
    redis
        .send(format!("SET {a} 1\r\nSET {b} 2 XX\r\nGET {a}\r\nGET {slow}\r\nSET {c} 3\r\n").as_bytes())
        .await;
    in_time(&mut redis, "+OK\r\n$-1\r\n$1\r\n1\r\n").await;
}

#[tokio::test]
async fn a_slow_key_does_not_keep_other_keys_waiting() {
    let nodes = HalfSilent::start().await;
    let (here, there) = (nodes.keys(true, 4), nodes.keys(false, 1));
    let mut redis = nodes.cluster.redis(0);
    redis.send(format!("GET {}\r\nSET {} first\r\n", there[0], here[0]).as_bytes()).await;
    nodes.sees(&here[0], "first").await;
    // What comes later is not kept waiting either, alone or together.
    redis.send(format!("SET {} second\r\nSET {} third\r\n", here[1], here[2]).as_bytes()).await;
    nodes.sees(&here[1], "second").await;
    nodes.sees(&here[2], "third").await;
    redis.send(format!("SET {} fourth\r\n", here[3]).as_bytes()).await;
    nodes.sees(&here[3], "fourth").await;
}

#[tokio::test]
async fn a_command_that_waits_for_its_key_does_not_keep_others_waiting() {
    let nodes = HalfSilent::start().await;
    let (here, there) = (nodes.keys(true, 2), nodes.keys(false, 1));
    let mut redis = nodes.cluster.redis(0);
    let slow = &there[0];
    redis
        .send(format!("SET {slow} 1\r\nSET {slow} 2\r\nDEL {slow}\r\nSET {} now\r\n", here[0]).as_bytes())
        .await;
    nodes.sees(&here[0], "now").await;
    redis.send(format!("GET {slow}\r\nSET {} too\r\n", here[1]).as_bytes()).await;
    nodes.sees(&here[1], "too").await;
}

#[tokio::test]
async fn commands_that_arrive_together_are_one_message_to_each_node() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let mut redis = cluster.redis(0);
    // Links are opened.
    redis.ask("SET warm up", "+OK\r\n").await;
    let pipeline = |command: &dyn Fn(usize) -> String| (0..100).map(command).collect::<String>();
    let sets = pipeline(&|n| format!("SET key-{n} value\r\n"));
    let gets = pipeline(&|n| format!("GET key-{n}\r\n"));
    let deletes = pipeline(&|n| format!("DEL key-{n}\r\n"));
    for (commands, answer) in [(sets, "+OK\r\n"), (gets, "$5\r\nvalue\r\n"), (deletes, ":1\r\n")] {
        let before: u64 = (1..3).map(|node| cluster.requests(node)).sum();
        redis.send(commands.as_bytes()).await;
        redis.expect(&answer.repeat(100)).await;
        let messages = (1..3).map(|node| cluster.requests(node)).sum::<u64>() - before;
        // One at least, which makes the quorum; a few more, because nodes talk about other things, too.
        assert!((1..60).contains(&messages), "{messages} messages for {commands:.20}");
    }
}

#[tokio::test]
async fn a_command_that_fails_does_so_alone() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let mut redis = cluster.redis(0);
    let long = "k".repeat(5000);
    let refusal = "-ERR key of 5000 bytes is over the limit of 4096 bytes\r\n";
    redis
        .send(format!("SET a 1\r\nSET {long} 2\r\nSET b 3\r\nSET c 4 EX 0\r\nSET d 5 EX 100\r\n").as_bytes())
        .await;
    redis
        .expect(&format!("+OK\r\n{refusal}+OK\r\n-ERR invalid expire time in 'set' command\r\n+OK\r\n"))
        .await;
    redis.send(format!("GET a\r\nGET {long}\r\nGET b\r\nGET c\r\nGET d\r\nTTL d\r\n").as_bytes()).await;
    redis.expect(&format!("$1\r\n1\r\n{refusal}$1\r\n3\r\n$-1\r\n$1\r\n5\r\n:100\r\n")).await;
    redis.send(format!("DEL a\r\nDEL {long}\r\nDEL nothing\r\nDEL b\r\nEXISTS a b d\r\n").as_bytes()).await;
    redis.expect(&format!(":1\r\n{refusal}:0\r\n:1\r\n:1\r\n")).await;
}

/// Draws numbers that are the same in each run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What one client that has the keys to itself must be told.
#[derive(Default)]
struct Expected {
    values: BTreeMap<u64, String>,
    /// Each command with its answer.
    answers: Vec<(String, String)>,
}

fn bulk(value: Option<&String>) -> String {
    value.map_or("$-1\r\n".to_owned(), |value| format!("${}\r\n{value}\r\n", value.len()))
}

impl Expected {
    /// Draws a command, and notes what it does and answers.
    fn command(&mut self, draw: &mut Draw, number: usize) -> String {
        let key = draw.below(6);
        let value = format!("value-{number}");
        let old = self.values.get(&key).cloned();
        let (ok, one, none) = ("+OK\r\n", ":1\r\n", ":0\r\n");
        let (command, answer, kept) = match draw.below(9) {
            0 | 1 => (format!("GET key-{key}"), bulk(old.as_ref()), old),
            2 | 3 => (format!("SET key-{key} {value}"), ok.to_owned(), Some(value)),
            4 => (format!("SET key-{key} {value} EX 1000"), ok.to_owned(), Some(value)),
            5 => (format!("DEL key-{key}"), if old.is_some() { one } else { none }.to_owned(), None),
            6 => {
                let answer = if old.is_some() { "$-1\r\n" } else { ok };
                (format!("SET key-{key} {value} NX"), answer.to_owned(), old.or(Some(value)))
            }
            7 => (format!("SET key-{key} {value} GET"), bulk(old.as_ref()), Some(value)),
            _ => {
                let values: String = (0..6).map(|key| bulk(self.values.get(&key))).collect();
                let keys: Vec<String> = (0..6).map(|key| format!("key-{key}")).collect();
                (format!("MGET {}", keys.join(" ")), format!("*6\r\n{values}"), old)
            }
        };
        match kept {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
        self.answers.push((command.clone(), answer));
        format!("{command}\r\n")
    }
}

#[tokio::test]
async fn mixed_pipelines_answer_as_if_one_command_ran_after_the_other() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let mut redis = cluster.redis(1);
    let (mut draw, mut expected, mut number) = (Draw(14), Expected::default(), 0);
    for _ in 0..12 {
        let mut commands = String::new();
        for _ in 0..=draw.below(300) {
            number += 1;
            commands.push_str(&expected.command(&mut draw, number));
        }
        // Cut anywhere: half a command may wait for its rest.
        for piece in commands.as_bytes().chunks(1 + draw.below(4000) as usize) {
            redis.send(piece).await;
            tokio::task::yield_now().await;
        }
        for (command, answer) in std::mem::take(&mut expected.answers) {
            let answered = tokio::time::timeout(PATIENCE / 4, redis.expect(&answer)).await;
            assert!(answered.is_ok(), "no answer {answer:?} to {command:?}");
        }
    }
}

/// Twenty megabytes each way stood still for ever: the node took in no command before its answers were read, and the
/// client read no answer before its commands were taken in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_writes_its_whole_pipeline_before_it_reads_gets_every_answer() {
    let mut redis = Connection::open().await;
    let value = "v".repeat(10_000);
    redis.ask(&format!("SET k {value}"), "+OK\r\n").await;
    let command = format!("*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000\r\n{value}\r\n$3\r\nGET\r\n");
    let sent = tokio::time::timeout(PATIENCE, redis.send(command.repeat(2_000).as_bytes())).await;
    sent.expect("the pipeline hangs");
    in_time(&mut redis, &format!("$10000\r\n{value}\r\n").repeat(2_000)).await;
}
