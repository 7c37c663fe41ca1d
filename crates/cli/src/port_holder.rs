//! Which process listens on a port of this machine, as far as the system tells.
//!
//! Only for messages to people: a port may change hands between the look and the sentence.
//!
//! **Architecture Invariant:** what cannot be read costs the name of the process, never the sentence.

use std::fs;

/// The state of a listening socket in the kernel's table.
const LISTENING: &str = "0A";

/// Why a node cannot listen at an address that another process has, and what to do. A node of `tontine dev` keeps its
/// ports: that command has no option for them once the cluster exists.
pub(crate) fn in_use(address: &str, is_of_dev: bool) -> String {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let by = port.map_or_else(String::new, shown);
    let instead = match is_of_dev {
        true => ": a cluster keeps the ports that it was created with",
        false => ", or choose another address with --listen, --resp or --http",
    };
    format!("address {address} is in use{by}; stop that process{instead}")
}

/// ` by process 4711 (redis-server)`, or nothing when the system does not tell.
pub(crate) fn shown(port: u16) -> String {
    let Some(process) = listening_on(port) else { return String::new() };
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!(" by process {process} ({})", name.trim()),
        Err(_) => format!(" by process {process}"),
    }
}

/// The process that listens on `port`, on any address.
fn listening_on(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let sockets: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| {
            let inodes = table.lines().filter_map(|line| socket(line, port));
            inodes.map(|inode| format!("socket:[{inode}]")).collect::<Vec<_>>()
        })
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|&id| has_open(id, &sockets))
}

/// The inode of a listening socket on `port`, if this line of the kernel's table is one.
fn socket(line: &str, port: u16) -> Option<&str> {
    let mut words = line.split_whitespace().skip(1);
    let (local, state) = (words.next()?, words.nth(1)?);
    let is_it = state == LISTENING && local.rsplit(':').next()? == format!("{port:04X}");
    // Between the state and the inode: queues, timer, retransmits, user, timeout.
    words.nth(5).filter(|_| is_it)
}

/// Whether a process has one of these sockets open. Those of other users cannot be looked into.
fn has_open(process: u32, sockets: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_only_when_it_listens_there() {
        let line = "   0: 0100007F:1CE9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 52617 1";
        assert_eq!(socket(line, 7401), Some("52617"));
        assert_eq!(socket(line, 7402), None);
        assert_eq!(socket(&line.replace(" 0A ", " 01 "), 7401), None);
        assert_eq!(socket("  sl  local_address rem_address   st", 7401), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_listening_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listening_on(port), Some(std::process::id()));
        assert!(shown(port).starts_with(&format!(" by process {} (", std::process::id())), "{}", shown(port));
    }
}
