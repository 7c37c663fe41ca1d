//! What every disk must do, run on each implementation.

use std::sync::Arc;

use super::mapping::Mapping;
use super::os::OsDisk;
use super::simulated::{DiskOperation, Fault, SimulatedDisk};
use super::waiting::without_waiting;
use super::{Disk, DiskError, File};

fn now<T>(future: crate::BoxFuture<'static, T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn read_all(disk: &dyn Disk, path: &str) -> Vec<u8> {
    let file = disk.open(path).unwrap();
    let mut buffer = vec![0; file.length() as usize + 10];
    let count = file.read_at(0, &mut buffer).unwrap();
    buffer.truncate(count);
    buffer
}

/// Runs a case on both disks.
fn on_each(case: fn(&dyn Disk)) {
    case(&SimulatedDisk::new(1));
    let directory = Scratch::new();
    case(&OsDisk::open(&directory.0).unwrap());
}

/// A directory that goes away with the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(Scratch::name()))
    }

    /// On the disk that the tests were built on.
    fn in_target() -> Scratch {
        Scratch(std::env::current_exe().unwrap().with_file_name(Scratch::name()))
    }

    fn name() -> String {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("tontine-disk-{}-{number}", std::process::id())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn appended_bytes_are_readable_at_once_and_after_reopening() {
    on_each(|disk| {
        let file = disk.create("a/b/one").unwrap();
        assert_eq!(file.append(b"hello ").unwrap(), 0);
        assert_eq!(file.append(b"world").unwrap(), 6);
        assert_eq!(file.length(), 11);
        let mut buffer = [0; 5];
        assert_eq!(file.read_at(6, &mut buffer).unwrap(), 5);
        assert_eq!(&buffer, b"world");
        assert_eq!(file.read_at(9, &mut buffer).unwrap(), 2);
        assert_eq!(file.read_at(99, &mut buffer).unwrap(), 0);
        assert_eq!(now(file.sync()), Ok(()));
        assert_eq!(now(disk.sync_directory("a/b")), Ok(()));
        drop(file);
        assert_eq!(read_all(disk, "a/b/one"), b"hello world");
        assert_eq!(disk.open("a/b/one").unwrap().append(b"!").unwrap(), 11);
    });
}

/// Two processes share a tree: one sees that the other appended, and that another file has the name.
#[test]
fn a_name_tells_which_file_has_it_and_how_long_that_is() {
    on_each(|disk| {
        assert_eq!(disk.stat("one"), Err(DiskError::NotFound { path: "one".into() }));
        let theirs = disk.create("one").unwrap();
        let ours = disk.open("one").unwrap();
        let before = disk.stat("one").unwrap();
        theirs.append(b"abc").unwrap();
        let after = disk.stat("one").unwrap();
        assert_eq!((after.identity, before.length, after.length), (before.identity, 0, 3));
        let anew = disk.open("one").unwrap();
        assert_eq!((anew.append(b"d").unwrap(), read_all(disk, "one")), (3, b"abcd".to_vec()));
        disk.create("two").unwrap();
        disk.rename("two", "one").unwrap();
        assert_ne!(disk.stat("one").unwrap().identity, before.identity, "who has the old one open may go on");
        drop(ours);
    });
}

#[test]
fn a_truncated_file_goes_on_at_its_new_end() {
    on_each(|disk| {
        let file = disk.create("one").unwrap();
        file.append(b"abcdef").unwrap();
        file.truncate(2).unwrap();
        assert_eq!(file.length(), 2);
        assert_eq!(file.append(b"X").unwrap(), 2);
        assert_eq!(read_all(disk, "one"), b"abX");
    });
}

#[test]
fn names_are_listed_sorted_renamed_over_and_removed() {
    on_each(|disk| {
        for name in ["d/b", "d/a", "d/c", "top"] {
            disk.create(name).unwrap().append(name.as_bytes()).unwrap();
        }
        assert_eq!(disk.list("d").unwrap(), ["a", "b", "c"]);
        assert_eq!(disk.list("").unwrap(), ["d", "top"]);
        assert_eq!(disk.list("nowhere").unwrap(), Vec::<String>::new());
        let open = disk.open("d/b").unwrap();
        disk.rename("d/a", "d/b").unwrap();
        assert_eq!(disk.list("d").unwrap(), ["b", "c"]);
        assert_eq!(read_all(disk, "d/b"), b"d/a");
        let mut buffer = [0; 3];
        assert_eq!(open.read_at(0, &mut buffer).unwrap(), 3, "who has it open may go on");
        assert_eq!(&buffer, b"d/b");
        disk.remove("d/b").unwrap();
        assert_eq!(disk.remove("d/b"), Err(DiskError::NotFound { path: "d/b".into() }));
        assert_eq!(disk.list("d").unwrap(), ["c"]);
    });
}

#[test]
fn a_directory_is_renamed_with_everything_below_it() {
    on_each(|disk| {
        for name in ["d/one", "d/e/two", "dd/three"] {
            disk.create(name).unwrap().append(name.as_bytes()).unwrap();
        }
        disk.rename("d", "aside/d").unwrap();
        assert_eq!(disk.list("").unwrap(), ["aside", "dd"], "and nothing else whose name begins so");
        assert_eq!(disk.list("aside/d").unwrap(), ["e", "one"]);
        assert_eq!(read_all(disk, "aside/d/e/two"), b"d/e/two");
        assert_eq!(disk.rename("d", "f"), Err(DiskError::NotFound { path: "d".into() }));
        disk.create("d/one").unwrap();
        assert!(disk.rename("d", "aside/d").is_err(), "the name is taken");
        assert_eq!(read_all(disk, "aside/d/one"), b"d/one");
    });
}

#[test]
fn a_renamed_directory_is_whole_under_one_of_its_names_after_a_crash() {
    let mut moved = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(0);
        disk.plant("d/e/one", b"1");
        disk.plant("d/two", b"2");
        disk.rename("d", "f").unwrap();
        disk.crash(seed);
        let names: Vec<String> = disk.files().into_iter().map(|(path, _)| path).collect();
        moved += usize::from(names == ["f/two", "f/e/one"]);
        assert!(names == ["f/two", "f/e/one"] || names == ["d/two", "d/e/one"], "{names:?}");
    }
    assert!((20..80).contains(&moved), "{moved} of 100 moved");
}

#[test]
fn missing_and_existing_files_are_told_apart() {
    on_each(|disk| {
        assert_eq!(disk.open("x").err(), Some(DiskError::NotFound { path: "x".into() }));
        disk.create("x").unwrap();
        assert_eq!(disk.create("x").err(), Some(DiskError::Exists { path: "x".into() }));
        assert_eq!(disk.rename("y", "z").err(), Some(DiskError::NotFound { path: "y".into() }));
    });
}

#[test]
fn a_lock_is_held_until_its_guard_is_dropped() {
    on_each(|disk| {
        let guard = disk.lock("d/LOCK").unwrap();
        assert_eq!(disk.lock("d/LOCK").err(), Some(DiskError::Locked { path: "d/LOCK".into() }));
        drop(guard);
        assert!(disk.lock("d/LOCK").is_ok());
    });
}

#[test]
fn the_os_disk_refuses_paths_that_leave_its_root() {
    let directory = Scratch::new();
    let disk = OsDisk::open(&directory.0).unwrap();
    for path in ["/etc/hosts", "../x", "a/../../x"] {
        assert!(matches!(disk.open(path).err(), Some(DiskError::Failed { .. })), "{path}");
    }
}

#[test]
fn many_callers_of_one_sync_are_all_answered() {
    let directory = Scratch::new();
    let disk = OsDisk::open(&directory.0).unwrap();
    let file = disk.create("one").unwrap();
    file.append(b"x").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answers =
        runtime.block_on(async { futures_util::future::join_all((0..200).map(|_| file.sync())).await });
    assert!(answers.iter().all(Result::is_ok));
    drop(disk);
    assert_eq!(runtime.block_on(file.sync()), Ok(()), "a file outlives its disk");
}

#[test]
fn a_crash_never_loses_synced_bytes_and_never_keeps_more_than_was_written() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = SimulatedDisk::new(0);
        let file = disk.create("d/one").unwrap();
        file.append(&[1; 700]).unwrap();
        now(file.sync()).unwrap();
        now(disk.sync_directory("d")).unwrap();
        now(disk.sync_directory("")).unwrap();
        file.append(&[2; 1300]).unwrap();
        disk.crash(seed);
        assert!(file.append(b"x").is_err(), "a handle of the life before is dead");
        let bytes = read_all(&disk, "d/one");
        assert!((700..=2000).contains(&bytes.len()));
        assert_eq!(bytes[..700], [1; 700]);
        outcomes.insert(match bytes.len() {
            700 => "lost",
            2000 => "kept",
            _ if bytes[700..].iter().all(|&byte| byte == 2) => "cut",
            _ => "garbled",
        });
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), ["cut", "garbled", "kept", "lost"]);
}

#[test]
fn a_name_survives_a_crash_for_certain_only_after_its_directory_was_synced() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(0);
        now(disk.create("d/old").unwrap().sync()).unwrap();
        now(disk.sync_directory("d")).unwrap();
        now(disk.sync_directory("")).unwrap();
        now(disk.create("d/new").unwrap().sync()).unwrap();
        disk.crash(seed);
        let names = disk.list("d").unwrap();
        assert!(names.contains(&"old".to_owned()));
        lost += usize::from(!names.contains(&"new".to_owned()));
    }
    assert!((20..80).contains(&lost), "{lost} of 100 lost");
}

#[test]
fn a_slow_directory_sync_covers_only_the_names_that_it_began_with() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(0);
        let gate = Arc::new(tokio::sync::Notify::new());
        let hook = gate.clone();
        disk.set_sync_delay(Some(Arc::new(move |_| {
            let hook = hook.clone();
            Box::pin(async move { hook.notified().await })
        })));
        disk.create("before").unwrap();
        let sync = disk.sync_directory("");
        disk.create("meanwhile").unwrap();
        gate.notify_one();
        now(sync).unwrap();
        disk.crash(seed);
        let names = disk.list("").unwrap();
        assert!(names.contains(&"before".to_owned()));
        lost += usize::from(!names.contains(&"meanwhile".to_owned()));
    }
    assert!((20..80).contains(&lost), "{lost} of 100 lost");
}

#[test]
fn a_renamed_file_is_under_one_of_its_names_after_a_crash() {
    for seed in 0..100 {
        let disk = SimulatedDisk::new(0);
        let file = disk.create("new.tmp").unwrap();
        file.append(b"new").unwrap();
        now(file.sync()).unwrap();
        disk.plant("it", b"old");
        now(disk.sync_directory("")).unwrap();
        disk.rename("new.tmp", "it").unwrap();
        disk.crash(seed);
        let renamed = read_all(&disk, "it") == b"new";
        assert_eq!(disk.open("new.tmp").is_ok(), !renamed);
        assert!(renamed || read_all(&disk, "it") == b"old");
    }
}

#[test]
fn bytes_of_a_failed_sync_are_gone_even_when_a_later_sync_succeeds() {
    let disk = SimulatedDisk::new(0);
    let file = disk.create("one").unwrap();
    now(disk.sync_directory("")).unwrap();
    file.append(&[1; 10]).unwrap();
    disk.inject(Fault::next(DiskOperation::Sync, 1));
    assert!(now(file.sync()).is_err());
    file.append(&[2; 10]).unwrap();
    assert_eq!(now(file.sync()), Ok(()));
    assert_eq!(read_all(&disk, "one")[..10], [1; 10], "the page cache still shows them");
    disk.crash(3);
    assert_eq!(read_all(&disk, "one"), [[0; 10], [2; 10]].concat());
}

#[test]
fn a_full_disk_takes_what_fits_and_says_so() {
    let disk = SimulatedDisk::new(0);
    disk.set_capacity(Some(10));
    let file = disk.create("one").unwrap();
    file.append(b"12345678").unwrap();
    assert_eq!((disk.available_bytes(), disk.total_bytes()), (2, Some(10)));
    assert_eq!(file.append(b"abcd"), Err(DiskError::Full));
    assert_eq!(file.length(), 10);
    file.truncate(8).unwrap();
    assert_eq!(disk.available_bytes(), 2);
    disk.remove("one").unwrap();
    assert_eq!(disk.available_bytes(), 10);
}

#[test]
fn the_power_goes_off_where_it_was_told_to() {
    let disk = SimulatedDisk::new(0);
    let file = disk.create("one").unwrap();
    disk.power_off_after(Some(1));
    assert!(file.append(b"abc").is_ok());
    assert!(file.append(b"def").is_err());
    assert!(disk.open("one").is_err());
    assert!(now(disk.sync_directory("")).is_err());
    disk.crash(0);
    assert!(disk.list("").is_ok());
}

#[test]
fn a_slow_sync_waits_for_its_hook() {
    let disk = SimulatedDisk::new(0);
    let gate = Arc::new(tokio::sync::Notify::new());
    let hook = gate.clone();
    disk.set_sync_delay(Some(Arc::new(move |_| {
        let hook = hook.clone();
        Box::pin(async move { hook.notified().await })
    })));
    let file = disk.create("one").unwrap();
    file.append(b"abc").unwrap();
    let mut sync = file.sync();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(sync.as_mut().poll(&mut context).is_pending());
    gate.notify_one();
    assert!(sync.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_flipped_bit_shows_before_and_after_a_crash() {
    let disk = SimulatedDisk::new(7);
    disk.plant("one", &[0; 64]);
    let offset = disk.flip_random_bit("one").unwrap() as usize;
    assert_eq!(read_all(&disk, "one")[offset].count_ones(), 1);
    disk.crash(1);
    assert_eq!(read_all(&disk, "one")[offset].count_ones(), 1);
    assert!(!disk.flip_bit("one", 64, 0));
}

/// What is not in memory is refused to whoever would not wait, and read by everybody else.
#[test]
fn a_read_that_must_not_wait_is_refused_what_is_not_in_memory() {
    let simulated = SimulatedDisk::new(1);
    let file = simulated.create("a").unwrap();
    file.append(b"hello").unwrap();
    simulated.set_cold(Some(1));
    is_refused_once(&*file, || {});
    simulated.set_cold(None);
    assert!(!without_waiting(|| file.read_at(0, &mut [0; 5])).refused);

    // Not below /tmp, which may be memory itself.
    let directory = Scratch::in_target();
    let real = OsDisk::open(&directory.0).unwrap();
    let file = real.create("a").unwrap();
    file.append(&[7; 1 << 16]).unwrap();
    assert!(!without_waiting(|| file.read_at(0, &mut [0; 5])).refused, "it was written just now");
    now(file.sync()).unwrap();
    let evict = || {
        let file = std::fs::File::open(directory.0.join("a")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    is_refused_once(&*file, evict);
}

#[test]
fn what_is_read_in_passing_is_what_is_there() {
    on_each(|disk| {
        let file = disk.create("b").unwrap();
        file.append(b"hello").unwrap();
        let mut read = [0; 8];
        assert_eq!((file.read_in_passing(1, &mut read), &read[..4]), (Ok(4), &b"ello"[..]));
        assert_eq!(file.read_in_passing(5, &mut []), Ok(0));
    });
}

fn is_refused_once(file: &dyn File, evict: impl Fn()) {
    // The system may have a hold of the page at that moment, and then it stays.
    let refused = |_| {
        evict();
        let tried = without_waiting(|| (file.read_at(0, &mut [0; 5]), file.read_at(1, &mut [0; 2])));
        let refused = tried.refused;
        if !refused {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        refused.then_some(tried)
    };
    let tried = (0..100).find_map(refused).expect("a page that was evicted is refused");
    assert_eq!(tried.answer, (Err(DiskError::WouldWait), Err(DiskError::WouldWait)));
    assert_eq!(file.read_at(0, &mut [0; 5]), Ok(5), "who waits gets it");
}

#[test]
fn a_mapping_shows_the_bytes_of_the_file_and_refuses_what_lies_beyond() {
    on_each(|disk| {
        let file = disk.create("one").unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        file.append(&bytes).unwrap();
        let mapping = file.map().unwrap();
        assert_eq!(mapping.length(), 20_000);
        for range in [0..1, 4095..4097, 0..20_000, 19_999..20_000, 5..5] {
            let view = mapping.view(range.clone()).unwrap();
            assert_eq!(*view, bytes[range.start as usize..range.end as usize]);
        }
        mapping.prefetch(7);
        mapping.fetch_ahead(0..20_000);
        mapping.refresh();
        assert_eq!(*mapping.view(8192..8200).unwrap(), bytes[8192..8200]);
        assert!(matches!(mapping.view(19_999..20_001).err(), Some(DiskError::Failed { .. })));
        assert!(mapping.is_sound());
        let empty = disk.create("empty").unwrap().map().unwrap();
        assert!(empty.view(0..0).unwrap().is_empty() && empty.view(0..1).is_err());
    });
}

#[test]
fn a_mapped_file_that_was_removed_is_read_on() {
    on_each(|disk| {
        let file = disk.create("one").unwrap();
        file.append(b"hello").unwrap();
        let mapping = file.map().unwrap();
        drop(file);
        disk.remove("one").unwrap();
        assert_eq!(*mapping.view(0..5).unwrap(), *b"hello");
    });
}

/// A file that is cut under a running node: an error, whether the page was seen before or not, and no signal that ends
/// the process.
#[test]
fn a_mapped_file_that_is_cut_is_an_error_and_no_end_of_the_process() {
    on_each(|disk| {
        let file = disk.create("one").unwrap();
        file.append(&[7; 16_384]).unwrap();
        let mapping = file.map().unwrap();
        assert_eq!(*mapping.view(8192..8193).unwrap(), [7]);
        file.truncate(4096).unwrap();
        assert!(matches!(mapping.view(12_288..12_289).err(), Some(DiskError::Failed { .. })), "never seen");
        // Seen before: what is shown may be zeros, but then the mapping says so.
        let shown = mapping.view(8192..8193).map(|view| view[0]);
        assert!(shown.is_err() || (shown == Ok(0) && !mapping.is_sound()), "{shown:?}");
        assert!(mapping.view(8192..8193).is_err(), "from then on it is refused");
        assert!(disk.open("one").unwrap().map().unwrap().is_sound(), "a new mapping is sound");
    });
}

/// As for reads: what is not in memory is refused to whoever would not wait.
#[test]
fn a_page_that_is_not_in_memory_is_brought_in_by_who_may_wait() {
    let simulated = SimulatedDisk::new(1);
    let file = simulated.create("a").unwrap();
    file.append(b"hello").unwrap();
    let mapping = file.map().unwrap();
    simulated.set_cold(Some(1));
    let tried = without_waiting(|| mapping.view(0..5).err());
    assert!(tried.refused && tried.answer == Some(DiskError::WouldWait));
    assert_eq!(*mapping.view(0..5).unwrap(), *b"hello");

    let directory = Scratch::in_target();
    let real = OsDisk::open(&directory.0).unwrap();
    let file = real.create("mapped").unwrap();
    file.append(&[7; 1 << 20]).unwrap();
    now(file.sync()).unwrap();
    let evict = || {
        let file = std::fs::File::open(directory.0.join("mapped")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    let shown = |mapping: &dyn Mapping| without_waiting(|| mapping.view(40_000..40_010).err());
    // The system may have a hold of the page at that moment, and then it stays.
    let refused = |_| {
        evict();
        let mapping = file.map().unwrap();
        let refused = shown(&*mapping).answer == Some(DiskError::WouldWait);
        std::thread::sleep(std::time::Duration::from_millis(10));
        refused.then_some(mapping)
    };
    let mapping = (0..100).find_map(refused).expect("a page that was evicted is refused");
    assert_eq!(*mapping.view(40_000..40_010).unwrap(), [7; 10]);
    assert_eq!(shown(&*mapping).answer, None, "it is in memory now");
    mapping.refresh();
    assert_eq!(shown(&*mapping).answer, None, "and it still is");
}

#[test]
fn a_read_error_below_a_mapping_is_an_error() {
    let disk = SimulatedDisk::new(1);
    let file = disk.create("a").unwrap();
    file.append(b"hello").unwrap();
    let mapping = file.map().unwrap();
    disk.inject(Fault::next(DiskOperation::Read, 1));
    assert!(matches!(mapping.view(0..5).err(), Some(DiskError::Failed { .. })));
    assert_eq!(*mapping.view(0..5).unwrap(), *b"hello");
}
