//! Artifacts from the files of Voldemort's read-only stores, which a few lines here write.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value as Json;

use crate::cluster::{Answer, tontine};

type Group<'a> = &'a [(&'a [u8], &'a [u8])];

/// Writes index and data of one chunk: groups of records, each group with one hash.
fn write_chunk(folder: &Path, name: &str, groups: &[Group]) {
    std::fs::create_dir_all(folder).unwrap();
    let (mut index, mut data) = (Vec::new(), Vec::new());
    for (number, group) in groups.iter().enumerate() {
        index.extend((number as u64).to_be_bytes());
        index.extend((data.len() as i32).to_be_bytes());
        data.extend((group.len() as i16).to_be_bytes());
        for (key, value) in *group {
            data.extend((key.len() as i32).to_be_bytes());
            data.extend((value.len() as i32).to_be_bytes());
            data.extend_from_slice(key);
            data.extend_from_slice(value);
        }
    }
    std::fs::write(folder.join(format!("{name}.index")), index).unwrap();
    std::fs::write(folder.join(format!("{name}.data")), data).unwrap();
}

fn build(inputs: &[&Path], output: &Path, more: &[&str]) -> Answer {
    let inputs: Vec<&str> = inputs.iter().map(|input| input.to_str().unwrap()).collect();
    let words =
        ["artifact", "build", "-s", "words", "--number", "7", "--json", "--to", output.to_str().unwrap()];
    tontine(&[&words[..], &inputs, more].concat())
}

const VOLDEMORT: &[&str] = &["--format", "voldemort"];

fn digest(answer: &Answer) -> String {
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    serde_json::from_slice::<Json>(&answer.stdout).unwrap()["manifest"].as_str().unwrap().to_owned()
}

#[test]
fn a_store_of_voldemort_makes_the_artifact_that_its_records_make() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (one, two) = (path("node-0/version-7"), path("node-1/version-7"));
    // Each node also has replica 1 of what the other one has.
    for (node, replica) in [(&one, 0), (&two, 1)] {
        write_chunk(node, &format!("0_{replica}_0"), &[&[(b"a", b"1")], &[(b"b", b""), (b"c", b"3")]]);
        write_chunk(node, &format!("0_{replica}_1"), &[]);
    }
    for (node, replica) in [(&two, 0), (&one, 1)] {
        write_chunk(node, &format!("3_{replica}_0"), &[&[(b"d", &[b'4'; 70_000])]]);
    }
    std::fs::write(one.join(".metadata"), r#"{"format": "ro2", "checksum-type": "none"}"#).unwrap();
    let mut text = String::new();
    for (key, value) in [("a", "1"), ("b", ""), ("c", "3"), ("d", &"4".repeat(70_000))] {
        writeln!(text, "{key}\t{value}").unwrap();
    }
    std::fs::write(path("same.tsv"), text).unwrap();
    let same = build(&[&path("same.tsv")], &path("same"), &["--key", "1", "--value", "2"]);
    let built = build(&[&one, &two], &path("built"), VOLDEMORT);
    assert_eq!(digest(&built), digest(&same));
    let half = build(&[&two], &path("half"), VOLDEMORT);
    assert!(half.text().contains("\"records\":1,"), "only what the node has as replica 0: {}", half.text());
}

#[test]
fn what_has_no_keys_or_is_damaged_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |directory: &Path, reason: &str| {
        let output = path("out");
        build(&[directory], &output, VOLDEMORT).fails_with(reason);
        assert!(!output.join("manifest").exists());
    };
    let whole = |name: &str| {
        write_chunk(&path(name), "0_0_0", &[&[(b"a", b"1")], &[(b"b", b"2")]]);
        path(name)
    };
    for format in ["ro0", "ro1"] {
        let folder = whole(format);
        std::fs::write(folder.join(".metadata"), format!("{{\"format\": \"{format}\"}}")).unwrap();
        refused(&folder, &format!("has format {format}, which keeps MD5 digests instead of keys"));
    }
    for name in ["0", "0_0"] {
        write_chunk(&path("unnamed"), name, &[]);
        refused(&path("unnamed"), "ro0 or ro1, which keeps MD5 digests");
        std::fs::remove_dir_all(path("unnamed")).unwrap();
    }
    let cut = |name: &str, file: &str, bytes: usize| {
        let folder = whole(name);
        let kept = std::fs::read(folder.join(file)).unwrap();
        std::fs::write(folder.join(file), &kept[..kept.len() - bytes]).unwrap();
        folder
    };
    refused(&cut("data", "0_0_0.data", 1), "0_0_0.data at byte 23: it ends within a record");
    refused(&cut("index", "0_0_0.index", 12), "its index ends too early");
    refused(&cut("entry", "0_0_0.index", 3), "its index ends too early");
    let other = whole("other");
    write_chunk(&path("longer"), "0_0_0", &[&[(b"a", b"12")], &[(b"b", b"2")]]);
    std::fs::copy(path("longer").join("0_0_0.index"), other.join("0_0_0.index")).unwrap();
    refused(&other, "its index names another place");
    std::fs::create_dir(path("empty")).unwrap();
    refused(&path("empty"), "holds no data of replica 0");
    refused(&path("nowhere"), "cannot read");
    let tsv = path("x.tsv");
    std::fs::write(&tsv, "a\t1\n").unwrap();
    let without_key = build(&[&tsv], &path("out"), &["--value", "2"]);
    without_key.fails_with("add --key COLUMN");
}
