//! `tontine artifact`: built from files, proved, compared, and refused where something is wrong.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use serde_json::Value as Json;

use crate::cluster::{Answer, tontine};

/// A folder with files of records, and the commands on artifacts in it.
struct Workshop(tempfile::TempDir);

impl Workshop {
    fn new() -> Workshop {
        Workshop(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn build(&self, inputs: &[&str], output: &str, more: &[&str]) -> Answer {
        let output = self.path(output);
        let words = ["artifact", "build", "--key", "1", "--value", "2", "-s", "words", "--to", &output];
        tontine(&[&words[..], inputs, more].concat())
    }

    fn built(&self, inputs: &[&str], output: &str, more: &[&str]) -> Json {
        let answer = self.build(inputs, output, &[more, &["--json"]].concat());
        assert_eq!(answer.code, 0, "{}", answer.stderr);
        serde_json::from_str(&answer.text()).unwrap()
    }

    fn chunks(&self, output: &str) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(Path::new(&self.path(output)).join("chunks"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn chunk(&self, output: &str, name: &str) -> std::path::PathBuf {
        Path::new(&self.path(output)).join("chunks").join(name)
    }
}

/// Words and their counts, in some order.
fn counts(order: impl Iterator<Item = u64>) -> String {
    order.fold(String::new(), |mut text, number| {
        let noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        writeln!(text, "word{number:07}\t{noise:016x}{:0>180}", noise % 1000).unwrap();
        text
    })
}

const RECORDS: u64 = 30_000;

#[test]
fn the_same_records_make_the_same_chunks_in_any_order_with_any_memory_and_jobs() {
    let workshop = Workshop::new();
    let up = workshop.write("up.tsv", &counts(0..RECORDS));
    let first = workshop.write("first.tsv", &counts((0..RECORDS / 2).rev()));
    let second = workshop.write("second.tsv", &counts((RECORDS / 2..RECORDS).rev()));
    for compression in ["none", "lz4", "zstd"] {
        let more = ["--number", "7", "--compression", compression];
        let (one, two) = (format!("one-{compression}"), format!("two-{compression}"));
        let built = workshop.built(&[&up], &one, &[&more[..], &["--jobs", "1"]].concat());
        let again = workshop.built(
            &[&second, &first],
            &two,
            &[&more[..], &["--jobs", "3", "--memory", "64MiB"]].concat(),
        );
        assert_eq!((&built["manifest"], &built["records"]), (&again["manifest"], &Json::from(RECORDS)));
        assert_eq!(workshop.chunks(&one), workshop.chunks(&two));
        assert!(!Path::new(&workshop.path(&one)).join("building").exists());
        let checked = tontine(&["artifact", "check", &workshop.path(&two), "--json"]);
        assert_eq!(checked.code, 0, "{}", checked.stderr);
        let checked: Json = serde_json::from_str(&checked.text()).unwrap();
        assert_eq!((&checked["sound"], &checked["number"]), (&Json::from(true), &Json::from(7)));
        let same =
            tontine(&["artifact", "diff", &workshop.path(&one), &format!("file://{}", workshop.path(&two))]);
        assert_eq!(
            (same.code, same.text()),
            (0, format!("0 records added, 0 removed, 0 changed, {RECORDS} equal\n"))
        );
    }
    let shown = tontine(&["artifact", "show", &workshop.path("one-zstd"), "--json"]);
    let shown: Json = serde_json::from_str(&shown.text()).unwrap();
    assert_eq!((&shown["store"], &shown["compression"]), (&Json::from("words"), &Json::from("zstd")));
    assert_eq!(shown["chunks"].as_array().unwrap().len(), workshop.chunks("one-zstd").len());
}

#[test]
fn a_comparison_names_what_differs() {
    let workshop = Workshop::new();
    let old = workshop.write("old.tsv", "one\t1\ntwo\t2\nthree\t3\n");
    let new = workshop.write("new.tsv", "one\t1\ntwo\t22\nfour\t4\n");
    workshop.built(&[&old], "old", &[]);
    workshop.built(&[&new], "new", &[]);
    let answer = tontine(&["artifact", "diff", &workshop.path("old"), &workshop.path("new"), "--json"]);
    let found: Json = serde_json::from_str(&answer.text()).unwrap();
    let numbers = ["added", "removed", "changed", "equal"].map(|word| found[word].as_u64().unwrap());
    assert_eq!((answer.code, numbers), (1, [1, 1, 1, 1]));
    assert_eq!(found["first"].as_array().unwrap().len(), 3);
}

/// What both artifacts have is not read: its files may even be gone. What only one has is.
#[test]
fn a_comparison_opens_no_chunk_that_both_artifacts_have() {
    for compression in ["lz4", "zstd"] {
        let shop = Workshop::new();
        let before = shop.write("1.tsv", &counts(0..RECORDS));
        let after = shop.write("2.tsv", &counts(0..RECORDS).replacen("word0000100\t", "word0000100\tx", 1));
        shop.built(&[&before], "one", &["--number", "1", "--compression", compression]);
        shop.built(&[&after], "two", &["--number", "2", "--parent", &shop.path("one")]);
        let (one, two) = (shop.chunks("one"), shop.chunks("two"));
        let both: Vec<&String> = one.iter().filter(|chunk| two.contains(chunk)).collect();
        let all = serde_json::from_str::<Json>(
            &tontine(&["artifact", "show", &shop.path("two"), "--json"]).exits(0).text(),
        );
        let all = all.unwrap()["chunks"].as_array().unwrap().len();
        assert_eq!((both.len() + 1, all > 1), (all, true), "one chunk differs: {one:?} {two:?}");
        let bytes_of = |chunk: &&String| std::fs::metadata(shop.chunk("two", chunk)).unwrap().len();
        let bytes: u64 = both.iter().map(bytes_of).sum();
        for chunk in &both {
            std::fs::remove_file(shop.chunk("one", chunk)).unwrap();
            std::fs::remove_file(shop.chunk("two", chunk)).unwrap();
        }
        let found = tontine(&["artifact", "diff", &shop.path("one"), &shop.path("two"), "--json"]).exits(1);
        let found: Json = serde_json::from_str(&found.text()).unwrap();
        let number = |word: &str| found[word].as_u64().unwrap();
        assert_eq!(["added", "removed", "changed", "equal"].map(number), [0, 0, 1, RECORDS - 1]);
        assert_eq!(["chunks_passed_over", "bytes_passed_over"].map(number), [both.len() as u64, bytes]);
        let differs = one.iter().find(|chunk| !two.contains(chunk)).unwrap();
        std::fs::remove_file(shop.chunk("one", differs)).unwrap();
        tontine(&["artifact", "diff", &shop.path("one"), &shop.path("two")]).exits(2);
    }
}

/// The same bytes are other values under another dictionary.
#[test]
fn a_comparison_passes_over_nothing_where_values_are_read_by_other_dictionaries() {
    let shop = Workshop::new();
    let old = shop.write("old.tsv", &counts(0..RECORDS));
    let new = shop.write("new.tsv", &counts(7..RECORDS + 7));
    shop.built(&[&old], "old", &["--compression", "zstd"]);
    shop.built(&[&new], "new", &["--compression", "zstd"]);
    let found = tontine(&["artifact", "diff", &shop.path("old"), &shop.path("new"), "--json"]).exits(1);
    let found: Json = serde_json::from_str(&found.text()).unwrap();
    let number = |word: &str| found[word].as_u64().unwrap();
    assert_eq!(["added", "removed", "changed", "equal"].map(number), [7, 7, 0, RECORDS - 7]);
    assert_eq!(number("chunks_passed_over"), 0);
}

#[test]
fn what_cannot_be_built_is_refused_and_leaves_no_artifact() {
    let workshop = Workshop::new();
    let input = workshop.write("words.tsv", "one\t1\ntwo\t2\none\t3\n");
    let empty = workshop.write("empty.tsv", "");
    let bad = workshop.write("bad.tsv", "one\t1\ntwo\n");
    let no_key = workshop.write("no-key.tsv", "\t1\n");
    let long = workshop.write("long.tsv", &format!("{}\t1\n", "k".repeat(4097)));
    let refused = |inputs: &[&str], more: &[&str], expected: &[&str]| {
        let answer = workshop.build(inputs, "out", more);
        assert_eq!(answer.code, 2, "{}", answer.stderr);
        for part in expected {
            assert!(answer.stderr.contains(part), "no {part:?} in {}", answer.stderr);
        }
        assert!(!Path::new(&workshop.path("out")).exists(), "nothing is left behind");
    };
    refused(
        &[&input],
        &[],
        &["the key \"one\"", "words.tsv line 1", "words.tsv line 3", "--duplicates last"],
    );
    refused(&[&empty], &[], &["no records"]);
    refused(&[&bad], &[], &["bad.tsv line 2"]);
    refused(&[&no_key], &[], &["key is empty"]);
    refused(&[&long], &[], &["over the limit"]);
    refused(&["nowhere.tsv"], &[], &["nowhere.tsv"]);
    refused(&[&input], &["--memory", "1MiB"], &["64MiB to 64GiB"]);
    let answer =
        tontine(&["artifact", "build", &input, "--key", "1", "--value", "2", "--to", "http://host/words"]);
    answer.fails_with("http://host/words can only be read");
    // A directory that was there before stays, with what it held.
    std::fs::create_dir(workshop.path("mine")).unwrap();
    workshop.write("mine/notes.txt", "mine");
    assert_eq!(workshop.build(&[&bad], "mine", &[]).code, 2);
    let left: Vec<_> = std::fs::read_dir(workshop.path("mine")).unwrap().collect();
    assert!(left.len() == 1 && Path::new(&workshop.path("mine/notes.txt")).exists(), "{left:?}");
    // An empty value is a value; the last record of a key counts if that is wanted.
    let nothing = workshop.write("nothing.tsv", "empty\t\n");
    let built = workshop.built(&[&input, &nothing], "out", &["--duplicates", "last"]);
    assert_eq!(built["records"], 3);
    let again = workshop.build(&[&input], "out", &["--duplicates", "last"]);
    assert!(again.code == 2 && again.stderr.contains("holds an artifact already"), "{}", again.stderr);
}

#[test]
fn a_damaged_artifact_is_told_from_a_sound_one_and_from_none() {
    let workshop = Workshop::new();
    let input = workshop.write("words.tsv", &counts(0..3000));
    workshop.built(&[&input], "out", &[]);
    let out = workshop.path("out");
    let chunk = Path::new(&out).join("chunks").join(&workshop.chunks("out")[0]);
    let whole = std::fs::read(&chunk).unwrap();
    for change in ["flipped", "cut", "longer", "missing"] {
        let mut bytes = whole.clone();
        match change {
            "flipped" => bytes[5000] ^= 4,
            "cut" => bytes.truncate(whole.len() - 1),
            "longer" => bytes.push(0),
            _ => {}
        }
        match change {
            "missing" => std::fs::remove_file(&chunk).unwrap(),
            _ => std::fs::write(&chunk, bytes).unwrap(),
        }
        let answer = tontine(&["artifact", "check", &out, "--json"]);
        let found: Json = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!((answer.code, found["sound"].as_bool()), (1, Some(false)), "{change}");
        assert_eq!(found["damages"].as_array().unwrap().len(), 1);
    }
    std::fs::write(&chunk, &whole).unwrap();
    assert_eq!(tontine(&["artifact", "check", &out]).code, 0);
    let manifest = Path::new(&out).join("manifest");
    let bytes = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, &bytes[..bytes.len() - 1]).unwrap();
    let answer = tontine(&["artifact", "show", &out]);
    assert!(answer.code == 2 && answer.stderr.contains("checksum does not match"), "{}", answer.stderr);
    std::fs::remove_file(&manifest).unwrap();
    let answer = tontine(&["artifact", "show", &out]);
    assert!(answer.code == 2 && answer.stderr.contains("holds no artifact"), "{}", answer.stderr);
}

/// The tests' own user may be root, who may read and write everything; *nobody* may not.
fn as_nobody(words: &[&str]) -> Answer {
    let mut command = crate::cluster::command(words);
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    Answer::of(command.output().unwrap())
}

#[test]
fn an_artifact_of_another_user_is_checked_and_what_cannot_be_read_is_no_damage() {
    let shop = Workshop::new();
    let input = shop.write("words.tsv", &counts(0..3000));
    shop.built(&[&input], "out", &[]);
    let out = shop.path("out");
    let chunk = shop.chunk("out", &shop.chunks("out")[0]);
    let allow = |path: &Path, rights| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(rights)).unwrap();
    };
    allow(shop.0.path(), 0o755);
    shop.chunks("out").iter().for_each(|name| allow(&shop.chunk("out", name), 0o444));
    as_nobody(&["artifact", "check", &out]).exits(0);
    allow(&chunk, 0o000);
    let answer = as_nobody(&["artifact", "check", &out, "--json"]).exits(1).json();
    assert_eq!((&answer["sound"], &answer["damages"]), (&Json::from(false), &Json::from(Vec::<Json>::new())));
    assert!(answer["unread"][0].as_str().unwrap().contains("Permission denied"), "{answer}");
    let shown = as_nobody(&["artifact", "check", &out]).exits(1).text();
    assert!(shown.contains("1 chunk not read") && shown.contains("give this user the right"), "{shown}");
    assert!(!shown.contains("damaged"), "{shown}");
}

#[test]
fn files_that_no_manifest_names_are_removed_and_nothing_else() {
    let shop = Workshop::new();
    let input = shop.write("counts.tsv", &counts(0..100));
    shop.built(&[&input], "words-1", &[]);
    let (url, named) = (shop.path("words-1"), shop.chunks("words-1"));
    let plant = |name: &str| {
        let path = Path::new(&url).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "leftover").unwrap();
    };
    for name in [&format!("chunks/{}", "0".repeat(32)), "building/0-1-2-000000.tmp", "chunks/notes.txt"] {
        plant(name);
    }
    let clean = |more: &[&str]| tontine(&[&["artifact", "clean", &url][..], more].concat());
    let shown = clean(&["--dry-run"]).exits(0).text();
    assert!(shown.starts_with("would remove 2 files (16 B)"), "{shown}");
    assert_eq!(shop.chunks("words-1").len(), named.len() + 2);
    clean(&[]).exits(0);
    let mut left = named.clone();
    left.push("notes.txt".to_owned());
    assert_eq!(shop.chunks("words-1"), left);
    assert!(!Path::new(&url).join("building").exists());
    tontine(&["artifact", "check", &url]).exits(0);
    std::fs::remove_file(Path::new(&url).join("manifest")).unwrap();
    clean(&[]).fails_with("a build may still be writing to it");
    assert_eq!(shop.chunks("words-1"), left);
    clean(&["--unfinished"]).exits(0);
    assert_eq!(shop.chunks("words-1"), ["notes.txt"]);
}

/// Words of which one in twenty of a few chunks has changed, is gone or has come.
fn changed_counts() -> String {
    let kept = counts(0..RECORDS);
    let mut text = kept.lines().filter(|line| !line.starts_with("word0000100\t")).fold(
        String::new(),
        |mut text, line| {
            match line.starts_with("word0000200\t") {
                true => text.push_str("word0000200\t2"),
                false => text.push_str(line),
            }
            text.push('\n');
            text
        },
    );
    text.push_str("another word\t1\n");
    text
}

#[test]
fn a_child_shares_with_its_parent_what_has_not_changed() {
    let shop = Workshop::new();
    let before = shop.write("before.tsv", &counts(0..RECORDS));
    let after = shop.write("after.tsv", &changed_counts());
    for compression in ["none", "zstd"] {
        let (one, two) = (format!("1-{compression}"), format!("2-{compression}"));
        let parent = shop.built(&[&before], &one, &["--number", "1", "--compression", compression]);
        let upon = shop.path(&one);
        let again =
            shop.built(&[&before], &format!("same-{compression}"), &["--number", "2", "--parent", &upon]);
        assert_eq!((&again["chunks_same"], &again["deltas"]), (&parent["chunks"], &Json::from(0)));
        let child = shop.built(&[&after], &two, &["--number", "2", "--parent", &upon, "--jobs", "2"]);
        let (chunks, same) = (child["chunks"].as_u64().unwrap(), child["chunks_same"].as_u64().unwrap());
        let deltas = child["deltas"].as_u64().unwrap();
        assert!((1..=3).contains(&deltas) && same == chunks - deltas, "{child}");
        assert!(child["delta_bytes"].as_u64().unwrap() < 3000, "{child}");
        assert_eq!(shop.chunks(&two).len() as u64, chunks + deltas);
        let url = shop.path(&two);
        let checked = tontine(&["artifact", "check", &url, "--json"]).exits(0).text();
        let checked: Json = serde_json::from_str(&checked).unwrap();
        assert_eq!((&checked["sound"], &checked["deltas"]), (&Json::from(true), &Json::from(deltas)));
        let differ = tontine(&["artifact", "diff", &upon, &url]);
        assert!(differ.text().starts_with("1 record added, 1 removed, 1 changed"), "{}", differ.text());
        let shown = tontine(&["artifact", "show", &url]).exits(0).text();
        assert!(shown.contains("built upon artifact 1 (manifest "), "{shown}");
        let left = tontine(&["artifact", "clean", &url]).exits(0).text();
        assert!(left.starts_with("nothing to remove"), "{left}");
        // It is whole without its parent.
        std::fs::remove_dir_all(&upon).unwrap();
        tontine(&["artifact", "check", &url]).exits(0);
    }
}

#[test]
fn changes_and_deletes_make_the_child_that_all_records_make() {
    let shop = Workshop::new();
    let (before, after) = (shop.write("1.tsv", &counts(0..RECORDS)), shop.write("2.tsv", &changed_counts()));
    shop.built(&[&before], "one", &["--number", "1", "--compression", "lz4"]);
    let upon = shop.path("one");
    let all = shop.built(&[&after], "all", &["--number", "2", "--parent", &upon]);
    let puts = shop.write("puts.tsv", "word0000200\t2\nanother word\t1\n");
    let gone = shop.write("gone.tsv", "word0000100\t\nnever there\t\n");
    let more = ["--number", "2", "--parent", &upon, "--changes", "--deletes", &gone];
    let by_changes = shop.built(&[&puts], "changes", &more);
    assert_eq!(by_changes["manifest"], all["manifest"]);
    assert_eq!(shop.chunks("changes"), shop.chunks("all"));
    // A list of keys is enough, in every format.
    let (header, json) =
        (shop.write("puts.csv", "k,v\nword0000200,2\n"), "{\"k\": \"word0000200\", \"v\": \"2\"}\n");
    let lines = shop.write("puts.jsonl", json);
    for (puts, gone, columns) in [
        (&puts, shop.write("list.tsv", "word0000100\n"), ["1", "2"]),
        (&header, shop.write("list.csv", "k\nword0000100\n"), ["k", "v"]),
        (&header, shop.write("list-1.csv", "k\nword0000100\n"), ["1", "v"]),
        (&lines, shop.write("list.jsonl", "{\"k\": \"word0000100\"}\n"), ["k", "v"]),
    ] {
        let to = shop.path(&gone.rsplit('/').next().unwrap().replace('.', "-"));
        let words =
            ["artifact", "build", puts, "--changes", "--deletes", &gone, "--key", columns[0], "--value"];
        let more = [columns[1], "-s", "words", "--to", &to, "--number", "2", "--parent", &upon];
        tontine(&[&words[..], &more].concat()).exits(0);
        let diff = tontine(&["artifact", "diff", &upon, &to, "--json"]).exits(1).json();
        assert_eq!((&diff["removed"], &diff["changed"]), (&1.into(), &1.into()), "{diff}");
    }
    let both = shop.write("both.tsv", "another word\t\n");
    let refused = shop.build(&[&puts], "out", &["--parent", &upon, "--changes", "--deletes", &both]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("puts.tsv line 2 and ") && refused.stderr.contains("both.tsv line 1"),
        "{}",
        refused.stderr
    );
    let refused = shop.build(&[&puts], "out", &["--changes"]);
    assert!(refused.code == 2 && refused.stderr.contains("--parent"), "{}", refused.stderr);
}

#[test]
fn files_that_do_not_say_what_is_meant_are_refused() {
    let shop = Workshop::new();
    let wide: Vec<u8> = "\u{feff}k1\tv1\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(shop.path("wide.tsv"), wide).unwrap();
    let quote = shop.write("quote.csv", "1,\"receipt\n2,\"card\"\n");
    for (input, reason) in [
        (&shop.path("wide.tsv"), "wide.tsv is in UTF-16, and UTF-8 is needed"),
        (&quote, "quote.csv: line 2: text follows the closing quote of a column"),
    ] {
        let refused = shop.build(&[input], "out", &[]);
        assert!(refused.code == 2 && refused.stderr.contains(reason), "{}", refused.stderr);
    }
    let words =
        ["artifact", "build", &shop.write("id.csv", "id,v,id\n1,2,3\n"), "--key", "id", "--value", "v"];
    let refused = tontine(&[&words[..], &["-s", "words", "--to", &shop.path("out")]].concat());
    refused.fails_with("the header names 2 columns \"id\", numbers 1 and 3");
}

#[test]
fn a_parent_that_does_not_fit_is_refused() {
    let shop = Workshop::new();
    let input = shop.write("counts.tsv", &counts(0..3000));
    shop.built(&[&input], "one", &["--number", "5"]);
    let upon = shop.path("one");
    let refused = |store: &str, more: &[&str], expected: &str| {
        let output = shop.path("out");
        let words = [
            "artifact", "build", &input, "--key", "1", "--value", "2", "--to", &output, "-s", store,
            "--parent", &upon,
        ];
        let answer = tontine(&[&words[..], more].concat());
        assert_eq!(answer.code, 2, "{}", answer.stderr);
        assert!(answer.stderr.contains(expected), "no {expected:?} in {}", answer.stderr);
        assert!(!Path::new(&output).join("manifest").exists());
    };
    refused("people", &[], "is an artifact of store words");
    refused("words", &["--number", "5"], "needs a greater one");
    refused("words", &["--compression", "lz4"], "cannot be used with");
    let chunk = Path::new(&upon).join("chunks").join(&shop.chunks("one")[0]);
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[5000] ^= 4;
    std::fs::write(&chunk, &bytes).unwrap();
    refused("words", &[], "of the parent cannot be read: a checksum does not match");
    std::fs::remove_file(&chunk).unwrap();
    refused("words", &[], "of the parent cannot be read");
}

#[test]
fn a_damaged_delta_is_told_from_a_sound_one() {
    let shop = Workshop::new();
    let (before, after) = (shop.write("1.tsv", &counts(0..RECORDS)), shop.write("2.tsv", &changed_counts()));
    shop.built(&[&before], "one", &["--number", "1"]);
    shop.built(&[&after], "two", &["--number", "2", "--parent", &shop.path("one")]);
    let url = shop.path("two");
    let shown: Json =
        serde_json::from_str(&tontine(&["artifact", "show", &url, "--json"]).exits(0).text()).unwrap();
    let delta =
        shown["chunks"].as_array().unwrap().iter().find_map(|chunk| chunk["delta"]["digest"].as_str());
    let path = Path::new(&url).join("chunks").join(delta.unwrap());
    let whole = std::fs::read(&path).unwrap();
    for change in ["flipped", "cut", "missing"] {
        let mut bytes = whole.clone();
        match change {
            "flipped" => bytes[12] ^= 4,
            _ => bytes.truncate(whole.len() - 1),
        }
        match change {
            "missing" => std::fs::remove_file(&path).unwrap(),
            _ => std::fs::write(&path, bytes).unwrap(),
        }
        let answer = tontine(&["artifact", "check", &url, "--json"]);
        let found: Json = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!((answer.code, found["sound"].as_bool()), (1, Some(false)), "{change}");
    }
}

#[test]
fn a_copy_sends_what_is_not_there_and_its_manifest_last() {
    let shop = Workshop::new();
    let (before, after) = (shop.write("1.tsv", &counts(0..RECORDS)), shop.write("2.tsv", &changed_counts()));
    shop.built(&[&before], "one", &["--number", "1"]);
    shop.built(&[&after], "two", &["--number", "2", "--parent", &shop.path("one")]);
    let copy = |from: &str, to: &str| tontine(&["artifact", "copy", &shop.path(from), to, "--json"]);
    let sent = |from: &str, to: &str| copy(from, to).exits(0).json()["files_sent"].as_u64().unwrap();
    let (there, files) = (shop.path("there"), shop.chunks("two").len() as u64);
    assert_eq!(sent("two", &format!("file://{there}")), files, "deltas as well as chunks");
    assert_eq!((sent("two", &there), shop.chunks("there")), (0, shop.chunks("two")));
    tontine(&["artifact", "check", &there]).exits(0);
    assert!(!Path::new(&there).join("building").exists());
    // As if it had been broken off: one file is missing, one is cut, and there is no manifest.
    std::fs::remove_file(Path::new(&there).join("manifest")).unwrap();
    std::fs::remove_file(shop.chunk("there", &shop.chunks("two")[0])).unwrap();
    let cut = std::fs::File::options().write(true).open(shop.chunk("there", &shop.chunks("two")[1])).unwrap();
    cut.set_len(100).unwrap();
    assert_eq!(sent("two", &there), 2);
    tontine(&["artifact", "check", &there]).exits(0);
    copy("one", &there).fails_with("holds artifact 2 of store words already");
    // What the parent has beside it is not sent.
    let (parent, beside) = (shop.path("one"), shop.path("beside"));
    let taken =
        tontine(&["artifact", "copy", &shop.path("two"), &beside, "--parent", &parent, "--json"]).exits(0);
    let (sent, taken) = (&taken.json()["files_sent"], taken.json()["files_taken"].as_u64());
    assert!(taken.is_some_and(|taken| taken > 1) && *sent == files - taken.unwrap(), "{sent} {taken:?}");
    tontine(&["artifact", "check", &beside]).exits(0);
    // What is damaged is met on its way.
    let chunk = shop.chunk("one", &shop.chunks("one")[0]);
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&chunk, bytes).unwrap();
    let bad = shop.path("bad");
    let damaged = copy("one", &bad);
    assert!(
        damaged.stderr.contains(&format!("tontine artifact check {}", shop.path("one"))),
        "{}",
        damaged.stderr
    );
    damaged.fails_with("has another digest");
    tontine(&["artifact", "show", &bad]).fails_with("holds no artifact");
    copy("nothing", &bad).fails_with("holds no artifact");
    copy("two", "https://host/words").fails_with("https://host/words can only be read");
    #[cfg(not(feature = "sources"))]
    copy("two", "s3://tables/words").fails_with("this program was built without s3://");
}
