//! The Rust of README and `docs/guides/rust.md`, built as printed by a crate outside of the workspace, and run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::Cluster;

/// The checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The blocks of a language in a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// A crate of an application, beside a clone of the repository: what `dependencies` say, and one program for each block.
fn build(folder: &Path, dependencies: &str, programs: &[String]) -> Vec<PathBuf> {
    std::fs::create_dir_all(folder.join("src/bin")).unwrap();
    std::os::unix::fs::symlink(root(), folder.join("tontine")).unwrap();
    // The versions that the workspace was tested with, which are here already.
    std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let package = "[package]\nname = \"application\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
    std::fs::write(folder.join("Cargo.toml"), format!("{package}{dependencies}")).unwrap();
    for (number, program) in programs.iter().enumerate() {
        std::fs::write(folder.join(format!("src/bin/program{number}.rs")), program).unwrap();
    }
    let target = root().join("target/applications");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("RUSTFLAGS", "-D warnings")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // Two tests share the folder of what was built: take the programs away before the next build.
    let take = |number| {
        let name = format!("program{number}");
        std::fs::copy(target.join("debug").join(&name), folder.join(&name)).unwrap();
        folder.join(name)
    };
    (0..programs.len()).map(take).collect()
}

#[test]
#[ignore = "builds a crate outside of the workspace; ./check --full process runs it"]
fn the_rust_of_the_readme_and_of_the_guide_builds_as_printed_and_runs() {
    let readme = blocks("README.md", "rust");
    assert_eq!(readme.len(), 1, "README has one program");
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &blocks("README.md", "toml").concat(), &readme);

    let guide = blocks("docs/guides/rust.md", "rust");
    assert!(guide.len() >= 4);
    let folder = tempfile::tempdir().unwrap();
    let programs = build(folder.path(), &blocks("docs/guides/rust.md", "toml").concat(), &guide);
    let cluster = Cluster::start();
    let mut said = Vec::new();
    for program in programs {
        // The first address is that of nobody: the others are enough.
        let connect = format!("127.0.0.1:9,{}", cluster.connect());
        let ran = Command::new(&program).env("TONTINE_CONNECT", connect).output().unwrap();
        assert!(ran.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&ran.stderr));
        said.push(String::from_utf8(ran.stdout).unwrap());
    }
    let wanted = ["session:7 is alive on", "the name is taken", "eggs\nmilk\nsalt", "16 tasks wrote"];
    for (said, wanted) in said.iter().zip(wanted) {
        assert!(said.starts_with(wanted), "{said:?}");
    }
}
