//! Engines side by side, in process: CPU per operation, latency, space, memory, and how long a restart takes.
//!
//! ```text
//! cargo run --profile shipped -p storage --example engines -- \
//!     [--records N] [--operations N] [--directory DIR] [--json]
//! ```
//!
//! Records of 1 KiB under keys of 16 bytes, spread over 1024 partitions. The processor time is that of the whole
//! process: requests, syncs, compaction and snapshots, and the load generator itself, whose share is shown as the
//! engine named *nothing*.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people, run by hand")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use model::{PartitionId, Token};
use runtime::clock::os::OsClock;
use runtime::disk::os::OsDisk;
use runtime::tasks::os::OsTasks;
use serde_json::{Value, json};
use storage::{Change, Durability, Durable, EnginePorts, LogEngine, LogOptions, MemoryEngine, StorageEngine};

const VALUE_BYTES: usize = 1024;

struct Arguments {
    records: u64,
    operations: u64,
    directory: PathBuf,
    json: bool,
    /// Set in the child that is killed.
    child: bool,
}

fn arguments() -> Arguments {
    let mut parsed = Arguments {
        records: 1_000_000,
        operations: 1_000_000,
        directory: std::env::temp_dir().join(format!("tontine-engines-{}", std::process::id())),
        json: false,
        child: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let mut value = || given.next().unwrap_or_else(|| panic!("{flag} needs a value"));
        match flag.as_str() {
            "--records" => parsed.records = value().parse().unwrap(),
            "--operations" => parsed.operations = value().parse().unwrap(),
            "--directory" => parsed.directory = value().into(),
            "--json" => parsed.json = true,
            "--child" => parsed.child = true,
            _ => panic!("unknown option {flag}"),
        }
    }
    parsed
}

/// Processor time of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}

/// Memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// What every operation needs before the engine is called.
fn key(number: u64, key: &mut [u8; 16]) -> (PartitionId, Token) {
    use std::io::Write;
    write!(&mut key[..], "user{number:012}").unwrap();
    let token = Token::of(&key[..]);
    (PartitionId((token.0 >> 54) as u32), token)
}

fn pool() -> Bytes {
    let mut dice = Dice(88172645463325252);
    (0..1 << 20).map(|_| dice.next() as u8).collect::<Vec<u8>>().into()
}

fn put(engine: &dyn StorageEngine, pool: &Bytes, dice: &mut Dice, number: u64) -> Option<Durable> {
    let mut bytes = [0; 16];
    let (partition, token) = key(number, &mut bytes);
    let start = dice.below((pool.len() - VALUE_BYTES) as u64) as usize;
    let value = Bytes::copy_from_slice(&pool[start..start + VALUE_BYTES]);
    let commit = engine.update(partition, token, &bytes, &mut |_| Change::Put(value.clone())).unwrap();
    commit.map(|commit| engine.durable(commit))
}

fn get(engine: &dyn StorageEngine, number: u64) -> usize {
    let mut bytes = [0; 16];
    let (partition, token) = key(number, &mut bytes);
    engine.get(partition, token, &bytes).unwrap().map_or(0, |record| record.len())
}

fn wait(durable: Option<Durable>) {
    if let Some(Durable::Waits(future)) = durable {
        block_on(future).unwrap();
    }
}

/// One mix of operations by some threads, for the report.
fn mix(
    engine: &dyn StorageEngine,
    name: &str,
    threads: u64,
    reads: u64,
    records: u64,
    operations: u64,
) -> Value {
    let pool = pool();
    let (began, processor) = (Instant::now(), processor_seconds());
    let work = |seed: u64| {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (seed + 1));
        let mut times = [(); 2].map(|()| Histogram::<u64>::new_with_max(60_000_000_000, 3).unwrap());
        for _ in 0..operations / threads {
            let (number, is_read) = (dice.below(records), dice.below(100) < reads);
            let start = Instant::now();
            match is_read {
                true => assert!(get(engine, number) == VALUE_BYTES || name == "nothing"),
                false => wait(put(engine, &pool, &mut dice, number)),
            }
            times[usize::from(is_read)].record(start.elapsed().as_nanos() as u64).unwrap();
        }
        times
    };
    let [mut puts, mut gets] = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed))).collect();
        let mut finished = running.into_iter().map(|thread| thread.join().unwrap());
        let first = finished.next().unwrap();
        finished.fold(first, |[mut puts, mut gets], [more_puts, more_gets]| {
            puts.add(more_puts).unwrap();
            gets.add(more_gets).unwrap();
            [puts, gets]
        })
    });
    let (elapsed, processor) = (began.elapsed().as_secs_f64(), processor_seconds() - processor);
    json!({
        "engine": name, "reads_percent": reads, "threads": threads, "operations": operations,
        "operations_per_second": operations as f64 / elapsed,
        "processor_us_per_operation": processor * 1e6 / operations as f64,
        "get_us": percentiles(&mut gets), "put_us": percentiles(&mut puts),
    })
}

fn percentiles(times: &mut Histogram<u64>) -> Value {
    let at = |percentile: f64| times.value_at_percentile(percentile) as f64 / 1000.0;
    json!({ "p50": at(50.0), "p99": at(99.0), "p999": at(99.9), "max": times.max() as f64 / 1000.0 })
}

/// An engine that does nothing: what the load generator costs by itself.
struct Nothing(MemoryEngine);

impl StorageEngine for Nothing {
    fn get(&self, _: PartitionId, _: Token, _: &[u8]) -> Result<Option<Bytes>, storage::StorageError> {
        Ok(None)
    }
    fn update<'a>(
        &self,
        _: PartitionId,
        _: Token,
        _: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<storage::Commit>, storage::StorageError> {
        std::hint::black_box(change(None));
        Ok(None)
    }
    fn acknowledges_at_once(&self) -> bool {
        true
    }
    fn sync(&self) -> runtime::BoxFuture<'static, Result<(), storage::StorageError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn durable(&self, _: storage::Commit) -> Durable {
        Durable::Already
    }
    fn position(&self) -> storage::Commit {
        self.0.position()
    }
    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&storage::ScanCursor>,
        limit: storage::ScanLimit,
    ) -> Result<storage::ScanPage, storage::StorageError> {
        self.0.scan(partition, after, limit)
    }
    fn walk(
        &self,
        partition: PartitionId,
        tokens: std::ops::RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, storage::Met<'_>) -> std::ops::ControlFlow<()>,
    ) -> Result<(), storage::StorageError> {
        self.0.walk(partition, tokens, visit)
    }
    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, storage::StorageError> {
        self.0.find(partition, token, fingerprint)
    }
    fn partitions(&self) -> Vec<storage::Held> {
        Vec::new()
    }
    fn drop_partition(&self, _: PartitionId) -> Result<(), storage::StorageError> {
        Ok(())
    }
    fn stats(&self) -> storage::EngineStats {
        self.0.stats()
    }
    fn close(&self) -> runtime::BoxFuture<'static, Result<(), storage::StorageError>> {
        self.0.close()
    }
}

fn open_log(directory: &Path, durability: Durability) -> Arc<LogEngine> {
    let ports = EnginePorts { clock: Arc::new(OsClock::new()), tasks: Arc::new(OsTasks::start().unwrap()) };
    let disk = Arc::new(OsDisk::open(directory).unwrap());
    let options = LogOptions { durability, ..LogOptions::default() };
    // The tasks run on their own threads; this one only waits for the answer.
    block_on(LogEngine::open(disk, "log", options, ports)).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Loads, runs all mixes, and says what the engine takes.
fn measure(engine: &dyn StorageEngine, name: &str, arguments: &Arguments) -> Vec<Value> {
    let pool = pool();
    let (resident, processor) = (resident_bytes(), processor_seconds());
    let (mut dice, began) = (Dice(1), Instant::now());
    for number in 0..arguments.records {
        wait(put(engine, &pool, &mut dice, number));
    }
    let elapsed = began.elapsed().as_secs_f64();
    let mut results = vec![json!({
        "engine": name, "phase": "load", "records": arguments.records,
        "operations_per_second": arguments.records as f64 / elapsed,
        "processor_us_per_operation": (processor_seconds() - processor) * 1e6 / arguments.records as f64,
    })];
    // Few enough keys for the processor's caches: the engine's own work.
    let mut hot = mix(engine, name, 1, 100, 1000.min(arguments.records), arguments.operations);
    hot["phase"] = json!("1000 hot keys");
    results.push(hot);
    for (threads, reads) in [(1, 100), (1, 95), (2, 95), (1, 50), (2, 50), (1, 0)] {
        results.push(mix(engine, name, threads, reads, arguments.records, arguments.operations));
    }
    std::thread::sleep(Duration::from_secs(3));
    let mut stats = engine.stats();
    if stats.live_bytes == 0 {
        // An engine that does not count them: keys and values as they were given.
        stats.live_bytes = arguments.records * (16 + VALUE_BYTES as u64);
    }
    let millions = arguments.records as f64 / 1e6;
    results.push(json!({
        "engine": name, "phase": "space", "records": stats.records,
        "live_mib": stats.live_bytes >> 20, "disk_mib": stats.disk_bytes >> 20,
        "disk_per_live": stats.disk_bytes as f64 / stats.live_bytes.max(1) as f64,
        "memory_mib_per_million_keys": stats.memory_bytes as f64 / millions / 1048576.0,
        "resident_mib_per_million_keys":
            resident_bytes().saturating_sub(resident) as f64 / millions / 1048576.0,
        "compacted_mib": stats.compacted_bytes >> 20, "syncs": stats.syncs,
    }));
    results
}

/// How long opening takes after a clean stop, and after a writing process was killed.
fn restarts(arguments: &Arguments) -> Vec<Value> {
    let open = |after: &str| {
        let began = Instant::now();
        let engine = open_log(&arguments.directory, Durability::default());
        let seconds = began.elapsed().as_secs_f64();
        let stats = engine.stats();
        let damaged = engine.repairable().map(|engine| engine.damage().found);
        assert_eq!((stats.records, damaged), (arguments.records, Some(0)));
        let result = json!({
            "engine": "log", "phase": format!("restart after {after}"), "records": stats.records,
            "seconds": seconds,
        });
        block_on(engine.close()).unwrap();
        result
    };
    let mut results = vec![open("a clean stop")];
    kill_a_writer(arguments);
    results.push(open("SIGKILL"));
    std::fs::remove_file(arguments.directory.join("log/index")).unwrap();
    results.push(open("loss of the index snapshot"));
    results
}

/// Starts a process that overwrites records, and kills it.
fn kill_a_writer(arguments: &Arguments) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--child", "--records", &arguments.records.to_string(), "--directory"])
        .arg(&arguments.directory)
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(4));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Overwrites records until it is killed.
fn child(arguments: &Arguments) -> ! {
    let engine = open_log(&arguments.directory, Durability::default());
    let (pool, mut dice) = (pool(), Dice(7));
    loop {
        let number = dice.below(arguments.records);
        wait(put(&*engine, &pool, &mut dice, number));
    }
}

fn main() {
    let arguments = arguments();
    if arguments.child {
        child(&arguments);
    }
    let mut results = Vec::new();
    let mut report = |new: Vec<Value>| {
        for result in &new {
            if !arguments.json {
                println!("{}", line(result));
            }
        }
        results.extend(new);
    };
    let nothing = Nothing(MemoryEngine::new());
    report(vec![mix(&nothing, "nothing", 1, 50, arguments.records, arguments.operations)]);
    {
        let memory = MemoryEngine::new();
        report(measure(&memory, "memory", &arguments));
    }
    let log = open_log(&arguments.directory, Durability::default());
    report(measure(&*log, "log", &arguments));
    block_on(log.close()).unwrap();
    drop(log);
    report(restarts(&arguments));
    report(always(&arguments));
    std::fs::remove_dir_all(&arguments.directory).unwrap();
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&results).unwrap());
    }
}

/// Writers that each wait for a sync: how many share one.
fn always(arguments: &Arguments) -> Vec<Value> {
    let log = open_log(&arguments.directory, Durability::Always);
    let operations = (arguments.operations / 50).max(1000);
    let mut results = Vec::new();
    for threads in [1, 8, 64] {
        let before = log.stats().syncs;
        let mut result = mix(&*log, "log, every write synced", threads, 0, arguments.records, operations);
        result["operations_per_sync"] = json!(operations as f64 / (log.stats().syncs - before).max(1) as f64);
        results.push(result);
    }
    block_on(log.close()).unwrap();
    results
}

/// One result for people.
fn line(result: &Value) -> String {
    let text = |name: &str| match &result[name] {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.2}", number.as_f64().unwrap()),
        other => other.to_string(),
    };
    let fields: Vec<String> = match result.as_object() {
        Some(object) => object
            .iter()
            .filter(|(name, _)| *name != "engine")
            .map(|(name, value)| match value.as_object() {
                Some(times) => {
                    let times: Vec<String> =
                        times.iter().map(|(p, v)| format!("{p} {:.1}", v.as_f64().unwrap())).collect();
                    format!("{name} [{}]", times.join(", "))
                }
                None => format!("{name} {}", text(name)),
            })
            .collect(),
        None => Vec::new(),
    };
    format!("{:<24} {}", text("engine"), fields.join("  "))
}
