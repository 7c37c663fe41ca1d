//! A Redis Cluster of real servers on its own addresses, and a client that follows its redirections.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use crate::adapters::speaking::{Speaking, addresses, await_some};
use crate::resp::Reply;

/// Port of all servers; each has its own address. Their bus has 10,000 more, below what the system hands out.
const PORT: u16 = 21_379;
const SLOTS: usize = 16_384;

/// Servers that end with their owner.
pub(crate) struct Servers {
    folder: tempfile::TempDir,
    net: String,
    pub(crate) port: u16,
    founders: usize,
    password: Option<String>,
    running: BTreeMap<String, Child>,
    booted: u8,
}

impl Servers {
    /// A cluster of this many, each with the same share.
    pub(crate) fn cluster(count: u8) -> Servers {
        Servers::with_password(count, None)
    }

    pub(crate) fn with_password(count: u8, password: Option<&str>) -> Servers {
        let range = addresses(1);
        let net = range.split('-').next().unwrap().rsplit_once('.').unwrap().0.to_owned();
        let folder = tempfile::tempdir().unwrap();
        let (running, password) = (BTreeMap::new(), password.map(str::to_owned));
        let mut servers =
            Servers { folder, net, port: PORT, founders: usize::from(count), password, running, booted: 0 };
        for number in 0..usize::from(count) {
            servers.start(number);
        }
        let create = |servers: &Servers| {
            let mut command = Command::new("redis-cli");
            command.envs(servers.password.iter().map(|word| ("REDISCLI_AUTH", word)));
            command.args(["--no-auth-warning", "--cluster", "create"]);
            command.args((0..usize::from(count)).map(|number| format!("{}:{PORT}", servers.host(number))));
            let done = command.arg("--cluster-yes").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        };
        for number in 0..usize::from(count) {
            await_some("it listens", || servers.try_call(number, &["PING"]).map(drop));
        }
        create(&servers);
        await_some("all serve", || {
            let is_ok = |number| {
                let text = servers.text(number, &["CLUSTER", "INFO"]);
                text.contains("cluster_state:ok") && text.contains(&format!("cluster_known_nodes:{count}"))
            };
            (0..usize::from(count)).all(is_ok).then_some(())
        });
        servers
    }

    fn start(&mut self, number: usize) {
        let host = self.host(number);
        let dir = self.path(&host);
        std::fs::create_dir(&dir).unwrap();
        let port = PORT.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", &host, "--cluster-announce-ip", &host, "--dir", &dir]);
        command.args(["--cluster-enabled", "yes", "--save", "", "--loglevel", "warning"]);
        if let Some(word) = &self.password {
            command.args(["--requirepass", word, "--masterauth", word]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.running.insert(host, child);
    }

    /// Starts one more as a machine would, and returns its address.
    pub(crate) fn boot(&mut self, engine: &mut Speaking) -> String {
        let script = engine.call("boot", json!({ "token": "u-1" }))["script"].as_str().unwrap().to_owned();
        self.booted += 1;
        let host = format!("{}.{}", self.net, 20 + self.booted);
        let dir = self.path(&host);
        std::fs::create_dir(&dir).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &script]).env("MACHINE_ADDRESS", &host).env("MACHINE_DATA", &dir);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.running.insert(host.clone(), child);
        host
    }

    pub(crate) fn signal(&self, host: &str, signal: Signal) {
        crate::cluster::signal(self.running[host].id(), signal);
    }

    pub(crate) fn stop(&mut self, host: &str, signal: Signal) {
        self.signal(host, signal);
        self.running.remove(host).unwrap().wait().unwrap();
    }

    /// The words of an adapter of this cluster.
    pub(crate) fn words(&self, further: &[&str]) -> Vec<String> {
        let seeds: Vec<String> = (0..3).map(|number| format!("{}:{PORT}", self.host(number))).collect();
        let own = [
            "adapter".to_owned(),
            "redis-cluster".to_owned(),
            format!("--seeds={}", seeds.join(",")),
            format!("--port={PORT}"),
        ];
        let settings = ["--", "--save", "", "--loglevel", "warning"];
        own.into_iter().chain(further.iter().chain(&settings).map(|&word| word.to_owned())).collect()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The range of addresses for machines of a local provider.
    pub(crate) fn machines(&self) -> String {
        format!("--addresses={0}.20-{0}.29", self.net)
    }

    /// The address of a server: first those of the cluster, then those that were booted.
    pub(crate) fn host(&self, number: usize) -> String {
        match number.checked_sub(self.founders) {
            Some(booted) => format!("{}.{}", self.net, 21 + booted),
            None => format!("{}.{}", self.net, 10 + number),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let first = format!("{}:{PORT}", self.host(0));
        Client { first, password: self.password.clone(), links: BTreeMap::new(), owners: vec![None; SLOTS] }
    }

    fn try_call(&self, number: usize, words: &[&str]) -> Option<Reply> {
        let mut link = Link::open(&format!("{}:{PORT}", self.host(number)), self.password.as_deref()).ok()?;
        link.call(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>()).ok()
    }

    /// What a server answers to a command.
    pub(crate) fn call(&self, number: usize, words: &[&str]) -> Reply {
        self.try_call(number, words).expect("it answers")
    }

    fn text(&self, number: usize, words: &[&str]) -> String {
        match self.call(number, words) {
            Reply::Bulk(Some(bytes)) => String::from_utf8(bytes).unwrap(),
            other => panic!("{words:?}: {other:?}"),
        }
    }

    /// The lists of members of all that answer.
    fn lists(&self) -> Vec<String> {
        let hosts = self.running.keys().map(|host| format!("{host}:{PORT}"));
        let lists = hosts.filter_map(|host| {
            let mut link = Link::open(&host, self.password.as_deref()).ok()?;
            match link.call(&[b"CLUSTER", b"NODES"]).ok()? {
                Reply::Bulk(Some(bytes)) => String::from_utf8(bytes).ok(),
                _ => None,
            }
        });
        lists.collect()
    }

    fn own_lines(&self) -> Vec<String> {
        let lists = self.lists();
        let own =
            lists.iter().map(|list| list.lines().find(|line| line.contains("myself")).unwrap().to_owned());
        own.collect()
    }

    /// Slots that are open anywhere, each as often as it is.
    pub(crate) fn open_slots(&self) -> usize {
        self.own_lines().iter().map(|line| line.matches('[').count()).sum()
    }

    /// How many slots each has, by its own account, in the order of addresses.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let count = |line: &String| {
            let spans = line.split(' ').skip(8).filter(|word| !word.starts_with('['));
            let bounds = spans.map(|span| span.split_once('-').unwrap_or((span, span)));
            bounds
                .map(|(first, last)| last.parse::<usize>().unwrap() + 1 - first.parse::<usize>().unwrap())
                .sum()
        };
        self.own_lines().iter().map(count).collect()
    }

    /// Ids of the first servers.
    pub(crate) fn ids(&self) -> Vec<String> {
        let count = self.running.len();
        let id = |number| match self.call(number, &["CLUSTER", "MYID"]) {
            Reply::Bulk(Some(id)) => String::from_utf8(id).unwrap(),
            other => panic!("{other:?}"),
        };
        (0..count).map(id).collect()
    }

    /// The owner of a slot, as the first server says.
    pub(crate) fn owner_of(&self, slot: usize) -> String {
        let list = self.text(0, &["CLUSTER", "NODES"]);
        let has = |line: &&str| {
            let spans = line.split(' ').skip(8).filter(|word| !word.starts_with('['));
            let mut bounds = spans.map(|span| span.split_once('-').unwrap_or((span, span)));
            bounds
                .any(|(first, last)| first.parse::<usize>().unwrap() <= slot && slot <= last.parse().unwrap())
        };
        list.lines().find(has).unwrap().split(' ').next().unwrap().to_owned()
    }

    /// Writes this many keys with a value each, which [`Servers::check_all`] expects.
    pub(crate) fn fill(&self, count: usize) {
        let mut client = self.client();
        for number in 0..count {
            client.set(&key(number), &value(number, 0));
        }
        std::fs::write(self.path("count"), count.to_string()).unwrap();
    }

    /// So many slots of the first quarter that have keys of [`Servers::fill`].
    pub(crate) fn slots_with_keys(&self, count: usize) -> Vec<usize> {
        let slots: BTreeSet<usize> = (0..500).map(|number| slot_of(&key(number))).collect();
        slots.into_iter().filter(|slot| *slot < SLOTS / 4).take(count).collect()
    }

    /// Compares every key of [`Servers::fill`]; how many there are.
    pub(crate) fn check_all(&self) -> usize {
        self.check_from(0)
    }

    /// The same from this one on.
    pub(crate) fn check_from(&self, first: usize) -> usize {
        let count: usize = std::fs::read_to_string(self.path("count")).unwrap().parse().unwrap();
        let mut client = self.client();
        for number in first..count {
            assert_eq!(
                client.get(&key(number)).as_deref(),
                Some(value(number, 0).as_str()),
                "{}",
                key(number)
            );
        }
        count - first
    }

    /// Writes and reads this many keys in turn, until it is told to end.
    pub(crate) fn load(&self, count: usize) -> Load {
        let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut client = self.client();
        let (over, counted) = (Arc::clone(&ends), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let mut rounds = vec![0; count];
            for number in 0..count {
                client.set(&key(number), &value(number, 0));
            }
            let mut dice: u64 = 7;
            while !over.load(Ordering::Relaxed) {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = usize::try_from(dice >> 33).unwrap() % count;
                let found = client.get(&key(number));
                assert_eq!(found, Some(value(number, rounds[number])), "{}", key(number));
                rounds[number] += 1;
                client.set(&key(number), &value(number, rounds[number]));
                counted.fetch_add(1, Ordering::Relaxed);
            }
            for (number, round) in rounds.iter().enumerate() {
                assert_eq!(client.get(&key(number)), Some(value(number, *round)), "{}", key(number));
            }
        });
        Load { ends, done, thread: RefCell::new(Some(thread)) }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A load that compares each of its reads.
pub(crate) struct Load {
    ends: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    thread: RefCell<Option<std::thread::JoinHandle<()>>>,
}

impl Load {
    /// Ends it; every read was as it should be, and so is every key. How many pairs of a read and a write there were.
    pub(crate) fn ends_well(&self, servers: &Servers) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().expect("each read was as it should be");
        assert_eq!(servers.open_slots(), 0);
        let done = self.done.load(Ordering::Relaxed);
        assert!(done > 100, "only {done} reads");
        done
    }
}

fn key(number: usize) -> String {
    format!("key-{number}")
}

fn value(number: usize, round: u32) -> String {
    format!("value-{number}-{round}-{}", "x".repeat(number % 200))
}

fn slot_of(key: &str) -> usize {
    let mut sum: u16 = 0;
    for byte in key.bytes() {
        sum ^= u16::from(byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
        }
    }
    usize::from(sum) % SLOTS
}

/// A client that follows the cluster's redirections. A server that is gone is passed over.
pub(crate) struct Client {
    first: String,
    password: Option<String>,
    links: BTreeMap<String, Link>,
    owners: Vec<Option<String>>,
}

impl Client {
    pub(crate) fn get(&mut self, key: &str) -> Option<String> {
        match self.call(key, &[b"GET", key.as_bytes()]) {
            Reply::Bulk(value) => value.map(|value| String::from_utf8(value).unwrap()),
            other => panic!("{key}: {other:?}"),
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        let reply = self.call(key, &[b"SET", key.as_bytes(), value.as_bytes()]);
        assert_eq!(reply, Reply::Status("OK".to_owned()), "{key}");
    }

    fn call(&mut self, key: &str, words: &[&[u8]]) -> Reply {
        let slot = slot_of(key);
        let (mut at, mut asks) = (self.owners[slot].clone().unwrap_or_else(|| self.first.clone()), false);
        for _ in 0..2_000 {
            let reply = self.call_at(&at, words, asks);
            let error = match &reply {
                Ok(Reply::Error(error)) => error.clone(),
                Ok(_) => return reply.unwrap(),
                Err(_) => {
                    self.links.remove(&at);
                    (at, asks) = (self.first.clone(), false);
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let place = error.split(' ').nth(2).map(str::to_owned);
            match error.split(' ').next().unwrap() {
                "MOVED" => {
                    at = place.unwrap();
                    asks = false;
                    self.owners[slot] = Some(at.clone());
                }
                "ASK" => (at, asks) = (place.unwrap(), true),
                "TRYAGAIN" | "CLUSTERDOWN" => std::thread::sleep(Duration::from_millis(10)),
                _ => panic!("{key}: {error}"),
            }
        }
        panic!("{key}: redirected for ever");
    }

    fn call_at(&mut self, at: &str, words: &[&[u8]], asks: bool) -> std::io::Result<Reply> {
        if !self.links.contains_key(at) {
            self.links.insert(at.to_owned(), Link::open(at, self.password.as_deref())?);
        }
        let link = self.links.get_mut(at).unwrap();
        if asks {
            link.call(&[b"ASKING"])?;
        }
        link.call(words)
    }
}

/// A connection that may break.
struct Link(BufReader<TcpStream>);

impl Link {
    fn open(at: &str, password: Option<&str>) -> std::io::Result<Link> {
        let stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        let mut link = Link(BufReader::new(stream));
        if let Some(password) = password {
            link.call(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(link)
    }

    fn call(&mut self, words: &[&[u8]]) -> std::io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        self.reply()
    }

    fn reply(&mut self) -> std::io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let lost = || std::io::Error::other("the connection ended");
        let rest = line.get(1..).unwrap_or_default().trim_end();
        let number = || rest.parse::<i64>().map_err(|_| lost());
        Ok(match line.as_bytes().first().ok_or_else(lost)? {
            b'+' => Reply::Status(rest.to_owned()),
            b'-' => Reply::Error(rest.to_owned()),
            b':' => Reply::Number(number()?),
            b'$' if rest == "-1" => Reply::Bulk(None),
            b'$' => {
                let mut bulk = vec![0; usize::try_from(number()?).unwrap() + 2];
                self.0.read_exact(&mut bulk)?;
                bulk.truncate(bulk.len() - 2);
                Reply::Bulk(Some(bulk))
            }
            _ => Reply::List((0..number()?).map(|_| self.reply()).collect::<std::io::Result<_>>()?),
        })
    }
}

/// All members that an adapter observes.
pub(crate) fn members(engine: &mut Speaking) -> Vec<Json> {
    engine.call("observe", json!({}))["members"].as_array().unwrap().clone()
}

pub(crate) fn at(members: &[Json], address: &str) -> Option<Json> {
    members.iter().find(|member| member["address"] == address).cloned()
}

/// A member, as the adapter observes it now.
pub(crate) fn member(engine: &mut Speaking, id: &str) -> Json {
    let members = members(engine);
    members
        .iter()
        .find(|member| member["id"] == id)
        .unwrap_or_else(|| panic!("no {id} in {members:?}"))
        .clone()
}

pub(crate) fn state(engine: &mut Speaking, id: &str) -> String {
    member(engine, id)["state"].as_str().unwrap().to_owned()
}

/// How far a member is. What stands in its way may change for ever, so it is no progress.
pub(crate) fn progress(member: &Json) -> [Json; 2] {
    ["state", "permille"].map(|field| member[field].clone())
}

/// Whether a member is in a state, or how far it is.
pub(crate) fn is_now(state: &str, member: &Json) -> Result<(), [Json; 2]> {
    if member["state"] == state { Ok(()) } else { Err(progress(member)) }
}

/// Whether evidence would let a member be ended, as `Evidence::proves` has it.
pub(crate) fn is_proof(evidence: &Json) -> bool {
    let known = ["owns_nothing", "nothing_moves", "nothing_short"].iter().all(|one| evidence[one] == true);
    known && !evidence["witnesses"].as_array().unwrap().is_empty()
}
