//! Lookups in artifacts beside other ways to find a key in a file that never changes, in process, in one thread.
//!
//! ```text
//! cargo run --release -p storage --features peers --example artifacts -- \
//!     [--records N] [--value BYTES] [--lookups N] [--directory DIR] [--only NAME] [--cold] [--compression] [--deltas]
//! ```
//!
//! Each is asked for random keys, of which all are there (numbers that are even), or none is (odd ones); the value is copied into a buffer. The times are
//! processor time of the thread, so that others on the machine count only by the caches that they take. The first row
//! is the paper's format, with a single get; ratios are to it.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people, run by hand")]

mod compression;
mod deltas;
mod others;
mod paper;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use model::{NodeId, Ring, StoreName, Token, Zone};
use runtime::disk::os::OsDisk;
use storage::readonly::{
    Artifact, BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Layout, Manifest, Merged, Place,
    Records, TokenHash, build,
};

/// Keys of a multi-get.
const TOGETHER: usize = 32;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;

pub(crate) struct Arguments {
    records: u64,
    value_bytes: usize,
    lookups: u64,
    directory: PathBuf,
    only: Option<String>,
    cold: bool,
    compression: bool,
    deltas: bool,
}

fn arguments() -> Arguments {
    let mut parsed = Arguments {
        records: 10_000_000,
        value_bytes: 100,
        lookups: 2_000_000,
        directory: std::env::temp_dir().join(format!("tontine-artifacts-{}", std::process::id())),
        only: None,
        cold: false,
        compression: false,
        deltas: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let mut value = || given.next().unwrap_or_else(|| panic!("{flag} needs a value"));
        match flag.as_str() {
            "--records" => parsed.records = value().parse().unwrap(),
            "--value" => parsed.value_bytes = value().parse().unwrap(),
            "--lookups" => parsed.lookups = value().parse().unwrap(),
            "--directory" => parsed.directory = value().into(),
            "--only" => parsed.only = Some(value()),
            "--cold" => parsed.cold = true,
            "--compression" => parsed.compression = true,
            "--deltas" => parsed.deltas = true,
            _ => panic!("unknown option {flag}"),
        }
    }
    parsed
}

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// The key of a number.
#[inline]
pub(crate) fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Noise from which values are cut.
pub(crate) fn pool() -> Vec<u8> {
    let mut dice = Dice(88_172_645_463_325_252);
    (0..1 << 20).map(|_| dice.next() as u8).collect()
}

/// The value of a number.
pub(crate) fn value(pool: &[u8], number: u64, bytes: usize) -> &[u8] {
    let start = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as usize % (pool.len() - bytes);
    &pool[start..start + bytes]
}

/// Processor time of this thread, in nanoseconds.
pub(crate) fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Bytes that this process had read from devices.
fn device_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find(|line| line.starts_with("read_bytes")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Something that finds values by keys.
pub(crate) trait Lookups {
    /// Appends the value; false when the key is not there.
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool;

    /// The same for several keys at once; how many are there.
    fn get_many(&self, keys: &[[u8; KEY_BYTES]], out: &mut Vec<u8>) -> usize {
        keys.iter().filter(|key| self.get(key, out)).count()
    }

    /// Bytes that must be in memory, beside the data.
    fn resident_bytes(&self) -> u64;
}

impl Lookups for Artifact {
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool {
        self.get_into(Token::of(key), key, out).unwrap()
    }

    fn get_many(&self, keys: &[[u8; KEY_BYTES]], out: &mut Vec<u8>) -> usize {
        let mut asked = [(Token(0), &[][..]); TOGETHER];
        for (asked, key) in asked.iter_mut().zip(keys) {
            *asked = (Token::of(key), &key[..]);
        }
        let mut there = 0;
        self.get_many_into(&asked[..keys.len()], out, &mut |found| {
            there += usize::from(found.unwrap().is_some())
        });
        there
    }

    fn resident_bytes(&self) -> u64 {
        Artifact::resident_bytes(self) as u64
    }
}

/// Nanoseconds for each lookup: there, there in batches, not there.
pub(crate) fn time(found: &dyn Lookups, arguments: (u64, usize, u64)) -> [f64; 3] {
    let (records, value_bytes, lookups) = arguments;
    let mut out = Vec::with_capacity(TOGETHER * (value_bytes + 64));
    let mut single = |absent: bool, seed: u64, lookups: u64| {
        let (mut dice, mut bytes) = (Dice(seed), 0);
        let began = processor_ns();
        for _ in 0..lookups {
            let number = 2 * dice.below(records) + u64::from(absent);
            out.clear();
            assert_eq!(found.get(&key(number), &mut out), !absent);
            bytes += out.len() as u64;
        }
        assert_eq!(bytes, if absent { 0 } else { lookups * value_bytes as u64 });
        (processor_ns() - began) as f64 / lookups as f64
    };
    // Once for the system to map what it has in memory.
    single(false, 1, lookups);
    let (present, absent) = (single(false, 2, lookups), single(true, 3, lookups));
    let mut dice = Dice(4);
    let began = processor_ns();
    for _ in 0..lookups / TOGETHER as u64 {
        let keys: [[u8; KEY_BYTES]; TOGETHER] = std::array::from_fn(|_| key(2 * dice.below(records)));
        out.clear();
        assert_eq!(found.get_many(&keys, &mut out), TOGETHER);
    }
    [present, (processor_ns() - began) as f64 / lookups as f64, absent]
}

/// The ring of a new cluster.
fn ring() -> Ring {
    Ring::equal_slices(1024, &[(NodeId(1), Zone("a".to_owned()))])
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Builds an artifact of records in memory.
pub(crate) fn built(
    directory: &Path,
    layout: Option<Layout>,
    compression: Compression,
    records: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
) -> (Arc<OsDisk>, Manifest) {
    let _ = std::fs::remove_dir_all(directory);
    let disk = Arc::new(OsDisk::open(directory).unwrap());
    let mut parts = vec![Records::default()];
    for (number, (key, value)) in records.enumerate() {
        if parts.last().unwrap().memory_bytes() > 3 << 30 {
            parts.push(Records::default());
        }
        let place = Place::new(0, number as u64);
        let record = BuildRecord { token: Token::of(&key), key: &key, value: &value, place };
        parts.last_mut().unwrap().push(record);
    }
    parts.iter_mut().for_each(Records::sort);
    let options = BuildOptions {
        store: StoreName::new("bench").unwrap(),
        number: 1,
        hash: TokenHash::Xxh3,
        compression,
        layout,
        duplicates: Duplicates::Refuse,
    };
    let merged = Merged::new(Vec::new(), parts, 0).unwrap();
    let manifest = block_on(build(disk.clone(), merged, &options, Cutter::along(&ring()))).unwrap();
    (disk, manifest)
}

fn row(name: &str, found: &dyn Lookups, base: &mut Option<[f64; 3]>, arguments: &Arguments, data_bytes: u64) {
    let times = time(found, (arguments.records, arguments.value_bytes, arguments.lookups));
    let [single, _, absent] = *base.get_or_insert(times);
    let resident = found.resident_bytes();
    println!(
        "| {name} | {:.0} ns {:.1}x | {:.0} ns {:.1}x | {:.0} ns {:.1}x | {:.2} B a key, {:.3}% |",
        times[0],
        single / times[0],
        times[1],
        single / times[1],
        times[2],
        absent / times[2],
        resident as f64 / arguments.records as f64,
        resident as f64 * 100.0 / data_bytes as f64,
    );
}

/// Device reads of a page for each get of a key that is in no memory yet.
fn cold(name: &str, directory: &Path, arguments: &Arguments) {
    for absent in [false, true] {
        let disk = OsDisk::open(directory).unwrap();
        let artifact = Artifact::open(&disk, "", &|_| true).unwrap();
        for entry in std::fs::read_dir(directory.join("chunks")).unwrap() {
            let file = std::fs::File::open(entry.unwrap().path()).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let gets = 5000;
        let (mut dice, mut out, before) = (Dice(7), Vec::new(), device_bytes());
        let (began, processor) = (Instant::now(), processor_ns());
        for _ in 0..gets {
            let number = 2 * dice.below(arguments.records) + u64::from(absent);
            out.clear();
            assert_eq!(artifact.get_into(Token::of(&key(number)), &key(number), &mut out).unwrap(), !absent);
        }
        println!(
            "cold {name}, {}: {:.3} pages read from the device for each get, {:.0} us, {:.1} us of processor time",
            if absent { "absent" } else { "present" },
            (device_bytes() - before) as f64 / 4096.0 / f64::from(gets),
            began.elapsed().as_secs_f64() * 1e6 / f64::from(gets),
            (processor_ns() - processor) as f64 / 1e3 / f64::from(gets),
        );
    }
}

fn main() {
    let arguments = arguments();
    if arguments.compression {
        compression::table(&arguments.directory);
        std::fs::remove_dir_all(&arguments.directory).unwrap();
        return;
    }
    if arguments.deltas {
        deltas::table(&arguments);
        std::fs::remove_dir_all(&arguments.directory).unwrap();
        return;
    }
    let pool = pool();
    let numbers = 0..arguments.records;
    let data_bytes = arguments.records * (KEY_BYTES + arguments.value_bytes) as u64;
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut base = None;
    println!(
        "{} records, keys of {KEY_BYTES} and values of {} bytes",
        arguments.records, arguments.value_bytes
    );
    println!(
        "| | get | {TOGETHER} keys at once, each | absent | in memory beside the data |\n|---|---|---|---|---|"
    );
    if !arguments.cold {
        let files =
            paper::write(&arguments.directory.join("paper"), arguments.records, arguments.value_bytes, &pool);
        row("paper: MD5, binary search", &paper::Binary(&files), &mut base, &arguments, data_bytes);
        if wanted("paper: MD5, interpolation") {
            row(
                "paper: MD5, interpolation",
                &paper::Interpolation(&files),
                &mut base,
                &arguments,
                data_bytes,
            );
        }
        drop(files);
        std::fs::remove_dir_all(arguments.directory.join("paper")).unwrap();
    }
    for layout in [Layout::Pages, Layout::Slots] {
        if !wanted(layout.name()) {
            continue;
        }
        let directory = arguments.directory.join(layout.name());
        let mut records = numbers
            .clone()
            .map(|number| (key(2 * number).to_vec(), value(&pool, number, arguments.value_bytes).to_vec()));
        let began = processor_ns();
        let (disk, manifest) = built(&directory, Some(layout), Compression::None, &mut records);
        let seconds = (processor_ns() - began) as f64 / 1e9;
        match arguments.cold {
            true => cold(layout.name(), &directory, &arguments),
            false => {
                let artifact = Artifact::open(&*disk, "", &|_| true).unwrap();
                // As a node does once a second.
                artifact.refresh();
                row(layout.name(), &artifact, &mut base, &arguments, data_bytes);
                println!(
                    "<!-- built in {seconds:.1} s of processor time, {:.0} MB/s; {:.4} bytes on disk for each of the data -->",
                    data_bytes as f64 / seconds / 1e6,
                    manifest.file_bytes() as f64 / data_bytes as f64
                );
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
    if !arguments.cold && wanted("perfect hash") {
        let found = others::PerfectHash::build(arguments.records, arguments.value_bytes, &pool);
        row("perfect hash, 16-bit fingerprints, no checksums", &found, &mut base, &arguments, data_bytes);
    }
    if !arguments.cold && wanted("array") {
        let found = others::Array::build(arguments.records, arguments.value_bytes, &pool);
        row("array whose positions are known, no checksums", &found, &mut base, &arguments, data_bytes);
    }
    if !arguments.cold && wanted("LMDB") {
        let directory = arguments.directory.join("lmdb");
        let found = others::Lmdb::build(&directory, arguments.records, arguments.value_bytes, &pool);
        row("LMDB", &found, &mut base, &arguments, data_bytes);
        drop(found);
    }
    std::fs::remove_dir_all(&arguments.directory).unwrap();
}
