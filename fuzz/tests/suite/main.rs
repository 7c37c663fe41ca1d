//! The program that `./check` runs.

use std::process::Command;

#[test]
fn every_decoder_takes_its_corpus() {
    let mutations = Command::new(env!("CARGO_BIN_EXE_mutations")).args(["--seconds", "0"]).output();
    let mutations = mutations.expect("the program runs");
    assert!(mutations.status.success(), "{}", String::from_utf8_lossy(&mutations.stderr));
}
