//! Passwords of Redis clients: a node remembers that it requires one, and never the password itself.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::cluster::{Cluster, tontine};
use crate::resp::{Redis, Reply};

const PASSWORD: &str = "open-sesame-7";
const WITH_PASSWORD: &[(&str, &str)] = &[("TONTINE_PASSWORD", PASSWORD)];

/// What a shell answers to a command that somebody pastes: exit status and standard error.
fn pasted(command: &str) -> (Option<i32>, String) {
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", command]).env_remove("TONTINE_PASSWORD").stdin(Stdio::null());
    let output = shell.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn ping(cluster: &Cluster, node: u16) -> Reply {
    Redis::connect(&cluster.resp(node)).call(&[b"PING"])
}

/// Whether any file below a directory holds these bytes.
fn holds(directory: &Path, wanted: &[u8]) -> bool {
    std::fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, wanted),
            false => std::fs::read(path).unwrap().windows(wanted.len()).any(|found| found == wanted),
        }
    })
}

/// The command that `dev` printed once started the node without a password: it served everybody, and `doctor` said that
/// all was well.
#[test]
fn a_node_that_had_a_password_starts_with_one_or_not_at_all() {
    let mut cluster = Cluster::with_environment(3, &[], WITH_PASSWORD);
    assert_eq!(ping(&cluster, 2), Reply::Error("NOAUTH Authentication required.".to_owned()));
    cluster.end_node(2, Signal::KILL);
    let command = cluster.start_command(2);
    let (variable, bare) = command.split_once(' ').unwrap();
    assert_eq!(variable, r#"TONTINE_PASSWORD="$TONTINE_PASSWORD""#);
    let (code, said) = pasted(&command);
    assert!(code == Some(2) && said.contains("set TONTINE_PASSWORD to the cluster's password"), "{said}");
    let (code, said) = pasted(bare);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("n2 was last started with a password") && said.contains("--no-password"), "{said}");
    let doctor = cluster.run(&["doctor"]).exits(1).text();
    assert!(doctor.contains(variable), "the doctor's command starts it as well: {doctor}");

    cluster.start_node_with(2, &[("TONTINE_PASSWORD", Path::new(PASSWORD))]);
    assert_eq!(ping(&cluster, 2), Reply::Error("NOAUTH Authentication required.".to_owned()));
    cluster.run(&["doctor"]).exits(0);
    assert!(!holds(cluster.folder.path(), PASSWORD.as_bytes()), "the password lies in a file");
}

#[test]
fn a_cluster_that_stops_requiring_a_password_says_so_once() {
    let mut cluster = Cluster::with_environment(3, &[], WITH_PASSWORD);
    cluster.stop();
    let mut words: Vec<&str> = cluster.arguments.iter().map(String::as_str).collect();
    tontine(&words).fails_with("was last started with a password for Redis clients");
    words.push("--no-password");
    let both = Command::new(env!("CARGO_BIN_EXE_tontine")).args(&words).envs(WITH_PASSWORD.to_vec()).output();
    let both = both.unwrap();
    assert_eq!(both.status.code(), Some(2));
    let said = String::from_utf8_lossy(&both.stderr).into_owned();
    assert!(said.contains("--no-password cannot be combined with a password"), "{said}");

    let arguments = cluster.arguments.clone();
    cluster.set_environment(&[]);
    cluster.arguments.push("--no-password".to_owned());
    cluster.start_again();
    assert_eq!(ping(&cluster, 1), Reply::Status("PONG".to_owned()));
    cluster.arguments = arguments;
    cluster.restart();
    assert_eq!(ping(&cluster, 1), Reply::Status("PONG".to_owned()), "it was said once");
}

#[test]
fn the_doctor_names_the_nodes_that_serve_everybody_among_those_that_require_a_password() {
    let mut cluster = Cluster::with_environment(3, &[], WITH_PASSWORD);
    cluster.run(&["doctor"]).exits(0);
    cluster.end_node(2, Signal::TERM);
    cluster.start_node_with_words(2, &["--no-password"]);
    assert_eq!(ping(&cluster, 2), Reply::Status("PONG".to_owned()));
    let said = cluster.run(&["doctor"]).exits(1).text();
    let expected = "n2 serves Redis clients without a password, while n1, n3 require one";
    assert!(said.contains(expected) && said.contains("with TONTINE_PASSWORD set"), "{said}");
}
