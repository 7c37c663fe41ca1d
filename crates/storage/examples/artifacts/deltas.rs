//! How much smaller deltas are than the chunks that they make, and how fast a merge is beside a copy of what it makes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use model::Token;
use runtime::Disk;
use runtime::disk::os::OsDisk;
use storage::readonly::{
    BuildRecord, Compression, Duplicates, Given, Layout, Manifest, MergeInputs, Merged, Place, Records,
    build_child, chunk_path, copy, merge,
};

use super::{Arguments, block_on, built, key, pool, processor_ns, value};

/// Each is done so many times, in turn with the other; the quickest counts.
const TURNS: usize = 3;

/// What the number holds after the change: of a hundred records three have another value, one is gone, and one has come.
fn after(number: u64) -> &'static [(u64, u64)] {
    match number % 100 {
        7 | 38 | 71 => &[(0, 1)],
        50 => &[],
        90 => &[(0, 0), (1, 0)],
        _ => &[(0, 0)],
    }
}

fn child(
    directory: &Path,
    parent: (Arc<OsDisk>, &Manifest),
    arguments: &Arguments,
) -> (Arc<OsDisk>, Manifest) {
    let pool = pool();
    let disk = Arc::new(OsDisk::open(directory).unwrap());
    let mut parts = vec![Records::default()];
    for number in 0..arguments.records {
        for (further, other) in after(number) {
            if parts.last().unwrap().memory_bytes() > 3 << 30 {
                parts.push(Records::default());
            }
            let key = key(2 * number + further);
            let value = value(&pool, number + other * 7919, arguments.value_bytes);
            let place = Place::new(0, 2 * number + further);
            parts.last_mut().unwrap().push(BuildRecord { token: Token::of(&key), key: &key, value, place });
        }
    }
    parts.iter_mut().for_each(Records::sort);
    let merged = Merged::new(Vec::new(), parts, 0).unwrap();
    let source: Arc<dyn Disk> = parent.0;
    let to: Arc<dyn Disk> = disk.clone();
    let manifest =
        block_on(build_child(to, merged, (source, parent.1), 2, (Given::All, Duplicates::Refuse))).unwrap();
    (disk, manifest)
}

/// Seconds on the wall, and of the processor.
fn timed(work: impl FnOnce()) -> (f64, f64) {
    let (began, processor) = (Instant::now(), processor_ns());
    work();
    (began.elapsed().as_secs_f64(), (processor_ns() - processor) as f64 / 1e9)
}

fn quicker(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0.min(b.0), a.1.min(b.1))
}

pub(crate) fn table(arguments: &Arguments) {
    println!(
        "{} records, keys of 16 and values of {} bytes, 5% changed\n\n\
         | layout | chunks | of deltas | deltas' share | merging | copying | share of a copy's speed | the same by processor time |\n\
         |---|---|---|---|---|---|---|---|",
        arguments.records, arguments.value_bytes
    );
    for layout in [Layout::Pages, Layout::Slots] {
        let at = |name: &str| arguments.directory.join(format!("{name}-{}", layout.name()));
        let pool = pool();
        let mut records = (0..arguments.records)
            .map(|number| (key(2 * number).to_vec(), value(&pool, number, arguments.value_bytes).to_vec()));
        let (source, parent) = built(&at("parent"), Some(layout), Compression::None, &mut records);
        let (disk, manifest) = child(&at("child"), (source.clone(), &parent), arguments);
        assert_eq!(manifest.deltas().len(), manifest.chunks.len(), "each chunk has changed a little");
        let (mut merging, mut copying) = ((f64::MAX, f64::MAX), (f64::MAX, f64::MAX));
        for turn in 0..TURNS {
            let into = at(&format!("made-{turn}"));
            let made: Arc<dyn Disk> = Arc::new(OsDisk::open(&into).unwrap());
            merging = quicker(merging, timed(|| merge_all((&source, &disk), &made, &manifest)));
            std::fs::remove_dir_all(&into).unwrap();
            let made: Arc<dyn Disk> = Arc::new(OsDisk::open(&into).unwrap());
            copying = quicker(
                copying,
                timed(|| {
                    let files = manifest.chunks.iter().map(|chunk| chunk.file());
                    files.for_each(|file| block_on(copy(&*disk, &*made, file)).unwrap());
                }),
            );
            std::fs::remove_dir_all(&into).unwrap();
        }
        let bytes = manifest.file_bytes() as f64;
        let deltas = manifest.deltas().iter().map(|delta| delta.file_bytes).sum::<u64>() as f64;
        println!(
            "| {} | {:.0} MB | {:.1} MB | {:.1}% | {:.0} MB/s | {:.0} MB/s | {:.2} | {:.2} |",
            layout.name(),
            bytes / 1e6,
            deltas / 1e6,
            deltas * 100.0 / bytes,
            bytes / merging.0 / 1e6,
            bytes / copying.0 / 1e6,
            copying.0 / merging.0,
            copying.1 / merging.1,
        );
    }
}

/// Makes all chunks, each durable, as a node does.
fn merge_all((source, child): (&OsDisk, &OsDisk), made: &Arc<dyn Disk>, manifest: &Manifest) {
    for delta in manifest.deltas() {
        let chunk = &manifest.chunks[delta.chunk as usize];
        let inputs = MergeInputs {
            parent: source.open(&chunk_path(delta.parent)).unwrap(),
            delta: child.open(&chunk_path(delta.digest)).unwrap(),
        };
        let finished = merge(made, &chunk_path(chunk.digest), inputs, manifest.hash, (chunk, delta)).unwrap();
        block_on(finished.file.sync()).unwrap();
    }
}
