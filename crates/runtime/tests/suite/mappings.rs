//! Too many mappings are refused by name, and what is mapped goes on being read. No other test of this program maps files:
//! this one uses up what a process may map.

use std::sync::Arc;

use runtime::disk::os::OsDisk;
use runtime::{Disk, DiskError, Mapping};

/// Files that may be mapped at a time, as `docs/operating/limits.md` says.
const MAPPINGS_MAX: usize = 1 << 15;

#[test]
fn one_mapping_too_many_is_refused_and_the_others_stay() {
    let folder = std::env::temp_dir().join(format!("tontine-mappings-{}", std::process::id()));
    let disk = OsDisk::open(&folder).unwrap();
    let file = disk.create("chunk").unwrap();
    file.append(b"what is mapped").unwrap();
    let mut mapped: Vec<Arc<dyn Mapping>> = (0..MAPPINGS_MAX).map(|_| file.map().unwrap()).collect();
    let Err(DiskError::Failed { path, reason }) = file.map().map(drop) else { panic!("one more is mapped") };
    assert_eq!((&path[..], &reason[..]), ("chunk", "32768 files are mapped, which is the limit"));
    let view = mapped[7].view(0..4).unwrap();
    assert_eq!(&view[..], b"what");
    drop(view);
    mapped.pop();
    assert_eq!(file.map().unwrap().length(), 14, "one that goes makes room");
    std::fs::remove_dir_all(&folder).unwrap();
}
