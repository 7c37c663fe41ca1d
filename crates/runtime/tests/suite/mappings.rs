//! Too many mappings are refused by name, and what is mapped goes on being read. No other test of this program maps files:
//! this one uses up what a process may map.

use std::sync::Arc;

use runtime::disk::os::{OsDisk, raise_descriptor_limit};
use runtime::{Disk, DiskError, Mapping};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that may be mapped at a time, as `docs/operating/limits.md` says.
const MAPPINGS_MAX: usize = 1 << 15;

#[test]
fn one_mapping_too_many_is_refused_and_the_others_stay() {
    let folder = std::env::temp_dir().join(format!("tontine-mappings-{}", std::process::id()));
    let disk = OsDisk::open(&folder).unwrap();
    // The limit that processes begin with is raised, and half of what there is, is for mappings.
    let limit = |current| Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit(256)).unwrap();
    assert_eq!(disk.mappings_left(), 128);
    let raised = raise_descriptor_limit();
    assert!(raised == getrlimit(Resource::Nofile).maximum && raised != Some(256), "{raised:?}");
    let all = raised.map_or(MAPPINGS_MAX, |raised| MAPPINGS_MAX.min(raised as usize / 2));
    assert_eq!(disk.mappings_left(), all);
    let file = disk.create("chunk").unwrap();
    file.append(b"what is mapped").unwrap();
    let mut mapped: Vec<Arc<dyn Mapping>> = (0..MAPPINGS_MAX).map(|_| file.map().unwrap()).collect();
    assert_eq!(disk.mappings_left(), 0);
    let Err(DiskError::Failed { path, reason }) = file.map().map(drop) else { panic!("one more is mapped") };
    assert_eq!((&path[..], &reason[..]), ("chunk", "32768 files are mapped, which is the limit"));
    let view = mapped[7].view(0..4).unwrap();
    assert_eq!(&view[..], b"what");
    drop(view);
    mapped.pop();
    assert_eq!(file.map().unwrap().length(), 14, "one that goes makes room");
    std::fs::remove_dir_all(&folder).unwrap();
}
