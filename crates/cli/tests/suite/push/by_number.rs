//! Reading one artifact by its number, whatever the store serves.

use super::build_of;
use crate::cluster::Cluster;

const KEYS: u64 = 40;

#[test]
fn an_artifact_is_read_by_its_number_while_it_is_staged_served_or_kept_and_not_after_it_was_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (build_of(folder.path(), 1, KEYS), build_of(folder.path(), 2, KEYS));
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    cluster.run(&["artifact", "stage", &two]).exits(0);
    let get = |number: &str| cluster.run(&["get", "word7", "-s", "words", "--artifact", number]);
    let mget = |number: &str, keys: &[&str]| {
        let words = ["-s", "words", "--artifact", number, "--json"];
        cluster.run(&[&["mget"], keys, &words].concat())
    };
    let both_read = |number: &str| {
        let is_it = |value: &str| value.starts_with(&format!("{number}:"));
        assert!(is_it(&get(number).exits(0).text()), "artifact {number}");
        let found = mget(number, &["word1", "word39"]).exits(0).json();
        let values = found.as_array().unwrap().iter().map(|entry| entry["value"].as_str().unwrap());
        assert!(values.clone().count() == 2 && values.clone().all(is_it), "artifact {number}: {found}");
        let lacks = mget(number, &["word1", "nothing"]).exits(1).json();
        assert_eq!((&lacks[0]["found"], &lacks[1]["found"]), (&true.into(), &false.into()), "{lacks}");
    };
    let served = || cluster.run(&["get", "word7", "-s", "words"]).exits(0).text()[..2].to_owned();
    // Served and staged, then kept and served.
    both_read("1");
    both_read("2");
    assert_eq!(served(), "1:");
    cluster.run(&["artifact", "swap", "words", "2"]).exits(0);
    both_read("1");
    both_read("2");
    assert_eq!(served(), "2:");
    let unknown = "store words lists no artifact 9; it lists 1, 2";
    get("9").fails_with(unknown);
    mget("9", &["word1"]).fails_with(unknown);
    cluster.run(&["artifact", "delete", "words", "1"]).exits(0);
    let deleted = "store words lists no artifact 1; it lists 2";
    get("1").fails_with(deleted);
    mget("1", &["word1"]).fails_with(deleted);
    let takes_writes = "store default takes writes and has no artifacts";
    cluster.run(&["get", "word7", "--artifact", "1"]).fails_with(takes_writes);
    cluster.run(&["mget", "word7", "--artifact", "1"]).fails_with(takes_writes);
}
