//! Control groups: how many processors a machine may use.
//!
//! A group of version 1 or 2 is made below this process's own, or below the root of what is mounted. The period is 10 ms:
//! with the usual 100 ms a machine of half a processor would stop for 50 ms at a time.

use std::io;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";
/// The directory of all groups of local machines.
const MACHINES: &str = "tontine-machines";
/// The period over which a share counts, in microseconds.
const PERIOD_US: u64 = 10_000;

/// What groups are told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Tries whether a machine could be capped, and leaves nothing behind; otherwise why not.
pub(super) fn trial() -> Result<(), String> {
    let name = format!("trial-{}", std::process::id());
    let group = make(&name, 500)?;
    remove(&group);
    Ok(())
}

/// Makes a group of so many thousandths of a processor; otherwise why that cannot be.
pub(super) fn make(name: &str, processors_milli: u64) -> Result<PathBuf, String> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut why = format!("no control groups are mounted at {GROUPS}");
    for (version, parent) in parents(&own) {
        let group = parent.join(MACHINES).join(name);
        match make_at(version, &parent, &group, processors_milli) {
            Ok(()) => return Ok(group),
            Err(error) => why = format!("{}: {error}", group.display()),
        }
    }
    Err(why)
}

/// Puts this process into a group.
pub(super) fn enter(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Removes a group without processes. One that has some yet stays.
pub(super) fn remove(group: &Path) {
    if group.parent().is_some_and(|above| above.ends_with(MACHINES)) {
        let _ = std::fs::remove_dir(group);
    }
}

fn make_at(version: Version, parent: &Path, group: &Path, processors_milli: u64) -> io::Result<()> {
    if !parent.is_dir() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let all = parent.join(MACHINES);
    std::fs::create_dir_all(&all)?;
    if version == Version::Two {
        // Each level hands the controller down to the next.
        for above in [parent, &all] {
            std::fs::write(above.join("cgroup.subtree_control"), "+cpu")?;
        }
    }
    std::fs::create_dir_all(group)?;
    let quota_us = processors_milli * PERIOD_US / 1_000;
    let written = match version {
        Version::One => std::fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string())
            .and_then(|()| std::fs::write(group.join("cpu.cfs_quota_us"), quota_us.to_string())),
        Version::Two => std::fs::write(group.join("cpu.max"), format!("{quota_us} {PERIOD_US}")),
    };
    if written.is_err() {
        remove(group);
    }
    written
}

/// Groups below which one may be made, as `/proc/self/cgroup` tells them, the likeliest first.
fn parents(own: &str) -> Vec<(Version, PathBuf)> {
    let mut parents = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        let (version, root) = if controllers.is_empty() {
            (Version::Two, PathBuf::from(GROUPS))
        } else if controllers.split(',').any(|one| one == "cpu") {
            (Version::One, Path::new(GROUPS).join("cpu"))
        } else {
            continue;
        };
        // Within a container the path may be that of the host, where nothing lies.
        parents.push((version, root.join(path)));
        parents.push((version, root));
    }
    // Version 2 without the controller of processors lies beside version 1 in places.
    parents.sort_by_key(|(version, _)| *version == Version::Two);
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let first = "3:cpu,cpuacct:/docker/a\n2:memory:/x\n0::/unified\n";
        let shown = |own| {
            let found = parents(own).into_iter();
            let found: Vec<String> =
                found.map(|(version, path)| format!("{version:?} {}", path.display())).collect();
            found
        };
        assert_eq!(
            shown(first),
            [
                "One /sys/fs/cgroup/cpu/docker/a",
                "One /sys/fs/cgroup/cpu",
                "Two /sys/fs/cgroup/unified",
                "Two /sys/fs/cgroup"
            ]
        );
        assert_eq!(shown("0::/user.slice\n"), ["Two /sys/fs/cgroup/user.slice", "Two /sys/fs/cgroup"]);
        assert!(shown("").is_empty());
    }
}
