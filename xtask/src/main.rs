//! `cargo run -p xtask -- tidy`: prints every offence and ends with 0 (none), 1 (some) or 2 (could not look).

use std::path::PathBuf;
use std::process::ExitCode;

use xtask::tidy::{self, Tree};

const USAGE: &str = "usage: cargo run -p xtask -- tidy [ROOT]

  tidy   holds the tree against ARCHITECTURE.md, docs/glossary.md, docs/design/dependencies.md and the style rules
  ROOT   checkout to look at; the workspace that this program was built from by default";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => run(tidy::workspace_root()),
        ["tidy", root] => run(PathBuf::from(root)),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(root: PathBuf) -> ExitCode {
    let tree = match Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy cannot look at {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    let offences = tidy::check(&tree);
    for offence in &offences {
        println!("{offence}\n");
    }
    println!("tidy: {} files, {} rules, {} offences", tree.len(), tidy::RULES.len(), offences.len());
    if offences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
