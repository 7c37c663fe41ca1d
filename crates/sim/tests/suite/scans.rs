//! SCAN over all cursors, as the Redis door answers it, while nodes die and others write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{Client, DeleteOptions, PutOptions};
use runtime::Ports;
use sim::cluster::{LAST_WRITE, World, redis_address};
use sim::dice::Dice;
use sim::executor::WallClock;
use sim::host::Host;
use sim::network::LinkStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::resp::{Reply, ReplyParser};

use crate::stage::{keys, play, put_all, setup};

/// How many scans follow one another.
const SCANS: u32 = 6;

/// One connection of a plain client after the other: a page that fails is asked for again, at another node.
struct Scanner {
    world: Arc<World>,
    ports: Ports,
    stream: Option<LinkStream>,
    machine: usize,
    failures: u32,
}

impl Scanner {
    /// The next cursor, and the keys of one page.
    async fn page(&mut self, cursor: &str) -> (String, Vec<Bytes>) {
        loop {
            let why = match self.ask(cursor).await {
                Ok(Reply::Array(answer)) => return page(&answer),
                Ok(Reply::Error(text)) => String::from_utf8_lossy(&text).into_owned(),
                Err(why) => why,
                Ok(other) => panic!("no client expects {other:?}"),
            };
            self.leave();
            self.failures += 1;
            assert!(self.failures < 1000, "no node answers SCAN {cursor}: {why}");
            self.world.executor.sleep(Duration::from_millis(50)).await;
        }
    }

    /// Goes on at the next node.
    fn leave(&mut self) {
        self.stream = None;
        self.machine = (self.machine + 1) % self.world.machines().len();
    }

    async fn ask(&mut self, cursor: &str) -> Result<Reply, String> {
        if self.stream.is_none() {
            let address = redis_address(self.world.machines()[self.machine].id());
            let link = self.ports.network.connect(&address).await.map_err(|error| error.to_string())?;
            self.stream = Some(LinkStream::new(link, self.ports.entropy.clone()));
        }
        let stream = self.stream.as_mut().expect("it was just opened");
        let command =
            format!("*4\r\n$4\r\nSCAN\r\n${}\r\n{cursor}\r\n$5\r\nCOUNT\r\n$2\r\n17\r\n", cursor.len());
        stream.write_all(command.as_bytes()).await.map_err(|error| error.to_string())?;
        let (mut parser, mut input) = (ReplyParser::default(), BytesMut::new());
        loop {
            if let Some(reply) = parser.parse(&mut input).expect("the door speaks the protocol") {
                return Ok(reply);
            }
            if stream.read_buf(&mut input).await.map_err(|error| error.to_string())? == 0 {
                return Err("the connection ended".to_owned());
            }
        }
    }
}

fn page(answer: &[Reply]) -> (String, Vec<Bytes>) {
    let [Reply::Bulk(cursor), Reply::Array(keys)] = answer else { panic!("no page: {answer:?}") };
    let keys = keys.iter().map(|key| match key {
        Reply::Bulk(key) => key.clone(),
        other => panic!("no key: {other:?}"),
    });
    (String::from_utf8(cursor.to_vec()).expect("a number"), keys.collect())
}

/// Kills one node after the other, until `done`.
async fn harm(world: Arc<World>, mut dice: Dice, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Relaxed) {
        let victim = dice.below(world.machines().len() as u64) as usize;
        world.kill(victim, Duration::ZERO, Duration::ZERO);
        world.executor.sleep(dice.millis(1, 300)).await;
        world.start(victim);
        let all_up = || world.all_up();
        crate::stage::until(&world, "all nodes stand again", all_up).await;
        world.executor.sleep(dice.millis(1, 300)).await;
    }
}

/// Writes and deletes other keys, until `done`: a scan may show them or not.
async fn churn(world: Arc<World>, client: Client, mut dice: Dice, done: Arc<AtomicBool>) {
    let store = client.store(LAST_WRITE).expect("the cluster has it");
    while !done.load(Ordering::Relaxed) {
        let key = Bytes::from(format!("other {}", dice.below(100)));
        // Whether it is done does not matter here.
        let _ = match dice.chance(500) {
            true => store.put(key, Bytes::from_static(b"new"), PutOptions::default()).await.map(drop),
            false => store.delete(key, DeleteOptions::default()).await.map(drop),
        };
        world.executor.sleep(dice.millis(1, 10)).await;
    }
}

/// How many pages failed.
fn scan_while_nodes_die(seed: u64, nodes: u32) -> u32 {
    let failures = Arc::new(AtomicU32::new(0));
    let failed = failures.clone();
    let mut setup = setup(seed);
    (setup.nodes, setup.redis_clients) = (nodes, 1);
    play(setup, move |world, client| async move {
        let there = keys(300);
        put_all(&world, &client, &there, "old").await;
        let gone: Vec<Bytes> = (0..50).map(|number| Bytes::from(format!("gone {number}"))).collect();
        put_all(&world, &client, &gone, "old").await;
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        for key in &gone {
            store.delete(key.clone(), DeleteOptions::default()).await.expect("two replicas answer");
        }
        let (done, mut dice) = (Arc::new(AtomicBool::new(false)), Dice::new(seed));
        let process = world.executor.process();
        let harm = harm(world.clone(), Dice::new(dice.roll()), done.clone());
        world.executor.spawn(process, Box::pin(harm));
        let churn = churn(world.clone(), client, Dice::new(dice.roll()), done.clone());
        world.executor.spawn(process, Box::pin(churn));
        let ports = world.ports(Host(120), process, Arc::new(WallClock::default()));
        let mut scanner = Scanner { world: world.clone(), ports, stream: None, machine: 0, failures: 0 };
        for _ in 0..SCANS {
            let mut seen: BTreeMap<Bytes, u32> = BTreeMap::new();
            let mut cursor = "0".to_owned();
            loop {
                let (next, keys) = scanner.page(&cursor).await;
                keys.into_iter().for_each(|key| *seen.entry(key).or_default() += 1);
                cursor = next;
                if dice.chance(300) {
                    // A cursor is good at each node.
                    scanner.leave();
                }
                world.executor.sleep(dice.millis(1, 40)).await;
                if cursor == "0" {
                    break;
                }
            }
            for key in &there {
                assert_eq!(seen.get(key), Some(&1), "{key:?} was there all the time");
            }
            assert!(gone.iter().all(|key| !seen.contains_key(key)), "what was deleted before is shown");
        }
        done.store(true, Ordering::Relaxed);
        failed.store(scanner.failures, Ordering::Relaxed);
    });
    failures.load(Ordering::Relaxed)
}

#[test]
fn a_scan_shows_each_lasting_key_once() {
    let failures = (1..=10).map(|seed| scan_while_nodes_die(seed, 3 + (seed % 3) as u32));
    let failures: Vec<u32> = failures.collect();
    assert!(failures.iter().sum::<u32>() >= 20, "hardly a page failed: {failures:?}");
}
