//! On what kind of file system a directory lies.
//!
//! A node trusts its disk: a lock excludes other processes, a sync makes durable, a file that is open stays. File systems
//! of a network keep none of that when their server or the way to it fails, so they are refused.

use std::path::Path;

use crate::failure::CliError;

/// The numbers by which Linux names file systems whose files lie on other machines (`linux/magic.h`, `statfs(2)`). A
/// file system in user space (FUSE) may be either, and passes.
const NETWORK: [(u32, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x0102_1997, "9P"),
    (0x0bd0_0bd0, "Lustre"),
    (0x7461_636f, "OCFS2"),
];

/// Refuses a directory on a network file system. One that does not exist is where its nearest parent is.
pub(crate) fn refuse_network(option: &str, directory: &Path) -> Result<(), CliError> {
    let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let Some(existing) = whole.ancestors().find(|path| path.exists()) else { return Ok(()) };
    // What cannot be looked at is told by whoever opens it.
    let Ok(found) = rustix::fs::statfs(existing) else { return Ok(()) };
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the numbers have 32 bits; the type differs by machine"
    )]
    #[allow(clippy::cast_sign_loss, reason = "the sign is none")]
    let kind = found.f_type as u32;
    match network_name(kind) {
        None => Ok(()),
        Some(name) => Err(CliError::Usage(format!(
            "{option} {} is on {name}, a network file system, where neither locks nor syncs can be relied on; choose a \
             directory on a disk of this machine",
            directory.display()
        ))),
    }
}

fn network_name(kind: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_a_network_are_known_by_their_numbers() {
        for (number, name) in
            [(0x6969, Some("NFS")), (0xff53_4d42, Some("CIFS")), (0xef53, None), (0x0102_1994, None)]
        {
            assert_eq!(network_name(number), name, "{number:x}");
        }
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("a/b");
        assert!(refuse_network("--data-dir", &absent).is_ok() && !absent.exists());
    }
}
