//! How many processors this process may use: those that its threads may run on, or less where a control group bounds it.
//!
//! ```text
//!   /proc/self/status  ── Cpus_allowed_list ──────────────▶ how many it may run on ─┐
//!   /proc/self/cgroup  ── its groups, version 1 or 2 ─┐                             ├─▶ the least
//!   /sys/fs/cgroup/…   ── cpu.max, cpu.cfs_quota_us ──┴──▶ quota over period, each ─┘
//! ```
//!
//! In a container the path of a group may be that of the host, where nothing lies under it. Groups above it are asked
//! as well, up to the root of what is mounted, and there lies the container's own.

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// How many processors this process may use now; `None` where the system does not say.
pub(super) fn processors() -> Option<f64> {
    let told = least(&|path| std::fs::read_to_string(path).ok());
    told.or_else(|| std::thread::available_parallelism().ok().map(|count| count.get() as f64))
}

/// The least of what the files say that `read` finds by their paths.
fn least(read: &dyn Fn(&str) -> Option<String>) -> Option<f64> {
    let allowed = read("/proc/self/status").and_then(|status| allowed(&status));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let quotas = places(&groups).into_iter().filter_map(|place| match place {
        QuotaDirectory::Second(directory) => quota(&read(&format!("{directory}/cpu.max"))?),
        QuotaDirectory::First(directory) => quota_of(
            &read(&format!("{directory}/cpu.cfs_quota_us"))?,
            &read(&format!("{directory}/cpu.cfs_period_us"))?,
        ),
    });
    allowed.into_iter().chain(quotas).reduce(f64::min)
}

/// A directory that may bound the process.
#[derive(Debug, PartialEq, Eq)]
enum QuotaDirectory {
    /// Of control groups of version 1.
    First(String),
    /// Of control groups of version 2.
    Second(String),
}

/// The directories of the groups that a process is in and of those above them, as `/proc/<pid>/cgroup` tells them.
fn places(groups: &str) -> Vec<QuotaDirectory> {
    let mut places = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if controllers.is_empty() {
            places.extend(upwards(GROUPS, path).map(QuotaDirectory::Second));
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            // Mounted by the names of all its controllers, and linked by the name of each.
            places.extend(upwards(&format!("{GROUPS}/cpu"), path).map(QuotaDirectory::First));
            if controllers != "cpu" {
                places.extend(upwards(&format!("{GROUPS}/{controllers}"), path).map(QuotaDirectory::First));
            }
        }
    }
    places
}

/// The directory of a group below `root`, and those above it up to `root`.
fn upwards(root: &str, path: &str) -> impl Iterator<Item = String> {
    let path = path.trim_matches('/');
    let ends = path.char_indices().rev().filter(|&(_, letter)| letter == '/').map(|(position, _)| position);
    let mut directories = vec![path];
    directories.extend(ends.map(|end| &path[..end]));
    directories.dedup();
    let mut directories: Vec<String> =
        directories.into_iter().map(|below| format!("{root}/{below}")).collect();
    directories.push(root.to_owned());
    directories.into_iter().filter(|directory| !directory.ends_with('/'))
}

/// How many processors the threads may run on, as `/proc/<pid>/status` lists them: `0-3,7`.
fn allowed(status: &str) -> Option<f64> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut count = 0_u32;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(f64::from(count))
}

/// The quota in `cpu.max` of version 2: microseconds in a period, or `max`.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    share(quota, period)
}

/// The quota in the two files of version 1; -1 is none.
fn quota_of(quota: &str, period: &str) -> Option<f64> {
    share(quota.trim(), period.trim())
}

fn share(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As read from machines; only what is looked for is kept of the status.
    fn told(files: &[(&str, &str)]) -> Option<f64> {
        least(&|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()))
    }

    const STATUS: (&str, &str) = (
        "/proc/self/status",
        "Name:\ttontine\nThreads:\t9\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n",
    );

    #[test]
    fn without_a_quota_it_may_use_what_it_may_run_on() {
        assert_eq!(told(&[STATUS]), Some(8.0));
        let groups = ("/proc/self/cgroup", "0::/system.slice/tontine.service\n");
        let no_quota = ("/sys/fs/cgroup/system.slice/tontine.service/cpu.max", "max 100000\n");
        assert_eq!(told(&[STATUS, groups, no_quota]), Some(8.0));
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn the_least_quota_of_nested_groups_counts() {
        let groups = ("/proc/self/cgroup", "0::/a.slice/b.scope/c\n");
        let own = ("/sys/fs/cgroup/a.slice/b.scope/c/cpu.max", "max 100000\n");
        let middle = ("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "320000 100000\n");
        let outer = ("/sys/fs/cgroup/a.slice/cpu.max", "75000 50000\n");
        assert_eq!(told(&[STATUS, groups, own, middle]), Some(3.2));
        assert_eq!(told(&[STATUS, groups, own, middle, outer]), Some(1.5));
    }

    #[test]
    fn in_a_container_the_root_of_what_is_mounted_is_its_own_group() {
        let root = ("/sys/fs/cgroup/cpu.max", "44000 100000\n");
        for path in ["0::/\n", "0::/docker/0123abcd\n", "0::/../../system.slice\n"] {
            assert_eq!(told(&[STATUS, ("/proc/self/cgroup", path), root]), Some(0.44), "{path}");
        }
    }

    #[test]
    fn a_quota_of_the_first_version_counts_by_either_name_of_its_directory() {
        let groups = (
            "/proc/self/cgroup",
            "9:name=systemd:/\n4:cpu,cpuacct:/docker/0123abcd\n3:cpuset:/\n2:memory:/x\n0::/\n",
        );
        for directory in ["/sys/fs/cgroup/cpu,cpuacct/docker/0123abcd", "/sys/fs/cgroup/cpu"] {
            let files = |quota: &'static str| {
                let quota = (format!("{directory}/cpu.cfs_quota_us"), quota.to_owned());
                let period = (format!("{directory}/cpu.cfs_period_us"), "100000\n".to_owned());
                let mut files = vec![quota, period];
                files.extend([STATUS, groups].map(|(name, text)| (name.to_owned(), text.to_owned())));
                let files: Vec<(&str, &str)> =
                    files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
                told(&files)
            };
            assert_eq!(files("17000\n"), Some(0.17), "{directory}");
            assert_eq!(files("-1\n"), Some(8.0), "{directory}");
        }
        let alone = ("/proc/self/cgroup", "2:cpuacct:/\n1:cpu:/\n0::/\n");
        let quota = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
        let period = ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        assert_eq!(told(&[STATUS, alone, quota, period]), Some(2.0));
    }

    #[test]
    fn what_it_may_run_on_counts_where_the_quota_is_more() {
        let status = ("/proc/self/status", "Cpus_allowed_list:\t2,5-6\n");
        let groups = ("/proc/self/cgroup", "0::/\n");
        assert_eq!(told(&[status, groups, ("/sys/fs/cgroup/cpu.max", "400000 100000\n")]), Some(3.0));
    }

    #[test]
    fn what_makes_no_sense_says_nothing() {
        for status in ["", "Cpus_allowed_list:\t\n", "Cpus_allowed_list:\t5-2\n", "Cpus_allowed_list:\tx\n"] {
            assert_eq!(allowed(status), None, "{status:?}");
        }
        for text in ["", "max", "100000", "0 100000", "100000 0", "-1 100000", "x y"] {
            assert_eq!(quota(text), None, "{text:?}");
        }
        assert_eq!(places("nonsense\n::\n1:cpu\n"), [QuotaDirectory::Second(GROUPS.to_owned())]);
    }

    #[test]
    fn this_process_may_use_some() {
        let told = processors().expect("this system says");
        assert!(told > 0.0 && told <= 4096.0, "{told}");
    }
}
