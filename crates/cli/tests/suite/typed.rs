//! The command line as people type it: help, mistakes, units, completions.

use crate::cluster::{Cluster, tontine};

#[test]
fn every_mistake_begins_with_the_name_of_the_program() {
    for words in
        [&["nonsense"][..], &["get"], &["put", "k", "v", "--ttl", "soon"], &["dev", "--connect", "h:1"]]
    {
        let answer = tontine(words).exits(2);
        assert!(answer.stderr.starts_with("tontine: "), "{words:?}: {}", answer.stderr);
        assert!(!answer.stderr.contains("error:"), "{words:?}: {}", answer.stderr);
    }
}

#[test]
fn help_names_the_options_that_a_command_takes_and_no_others() {
    let help = |words: &[&str]| tontine(&[words, &["--help"]].concat()).exits(0).text();
    let names = |words: &[&str], option: &str| help(words).contains(&format!("--{option} <"));
    assert!(names(&["get"], "connect") && names(&["get"], "store"));
    assert!(
        help(&["get"]).contains("[env: TONTINE_CONNECT="),
        "the variables of options are part of the help"
    );
    assert!(!names(&["dev"], "connect") && !names(&["dev"], "deadline") && names(&["dev"], "output"));
    assert!(!names(&["serve"], "connect") && names(&["node", "list"], "connect"));
    assert!(!names(&["node", "list"], "store") && !names(&["status"], "store"));
    // What help does not name is refused with the reason, wherever it is.
    tontine(&["--connect", "h:1", "dev"]).fails_with("it starts nodes instead of connecting to them");
    tontine(&["status", "-s", "carts"]).fails_with("it shows all stores");
}

#[test]
fn durations_take_units() {
    let cluster = Cluster::with(1, &["--repair-period=1h", "--hedge-after=20ms"]);
    cluster.run(&["put", "k", "v", "--ttl", "30m", "--deadline", "10s"]).exits(0);
    let got = cluster.run(&["get", "k"]).exits(0);
    assert_eq!(got.text(), "v\n");
    assert!(
        got.stderr.starts_with("expires in 29m5") || got.stderr.starts_with("expires in 30m"),
        "{}",
        got.stderr
    );
    assert!(cluster.run(&["mget", "k"]).exits(0).text().contains("29m5"), "the table has the time to live");
    cluster.run(&["put", "k", "v", "--ttl", "half an hour"]).fails_with("for example 500ms, 30s, 10m");
    cluster.run(&["put", "k", "v", "--deadline", "2h"]).fails_with("use 1ms to 1h");
    for ttl in ["-1", "-1s", "0", "2 years", "5300w"] {
        cluster
            .run(&["put", "k", "v", "--ttl", ttl])
            .fails_with("': a TTL is 1ms to 100 years, for example 500ms");
    }
    cluster.run(&["keys", "--limit", "-1"]).fails_with("for '--limit <COUNT>': use a whole number from 1");
    let status = cluster.run(&["status"]).exits(0).text();
    assert!(status.contains("UPTIME"), "{status}");
}

#[test]
fn a_shell_can_complete_every_command() {
    for (shell, words) in [("bash", "_tontine"), ("zsh", "#compdef tontine"), ("fish", "complete -c tontine")]
    {
        let script = tontine(&["completions", shell]).exits(0).text();
        for wanted in [words, "keys", "export", "completions"] {
            assert!(script.contains(wanted), "{shell} lacks {wanted}");
        }
    }
    tontine(&["completions", "csh"]).fails_with("bash");
    // The script is one that bash can read.
    let script = tontine(&["completions", "bash"]).exits(0).stdout;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c"), script).unwrap();
    let check = "source ./c && complete -p tontine && COMP_WORDS=(tontine ex) COMP_CWORD=1 && \
                 _tontine tontine ex tontine && echo \"${COMPREPLY[@]}\"";
    let answer = std::process::Command::new("bash").args(["-c", check]).current_dir(folder.path()).output();
    let said = String::from_utf8(answer.unwrap().stdout).unwrap();
    assert!(said.contains("-F _tontine") && said.trim_end().ends_with("export"), "{said}");
}
