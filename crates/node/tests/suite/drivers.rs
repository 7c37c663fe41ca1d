//! The page that lists the tests of drivers (`driven`) is worth as much as what it names.

use std::path::Path;

fn read(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The cells of each row of the page's tables, but for their heads.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| rule |"));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn each_rule_names_a_driver_and_a_test_that_exist() {
    let (page, plants) = (read("docs/design/drivers.md"), read("docs/design/plants.md"));
    let folder = "crates/node/tests/suite/driven";
    let rooms = [
        "adopting",
        "answering",
        "changing",
        "collecting",
        "comparing",
        "delivering",
        "fencing",
        "rebalance",
        "outdated",
        "reading",
        "refilling",
    ];
    let tests = rooms.map(|room| read(&format!("{folder}/{room}.rs"))).join("\n");
    let rows = rows(&page);
    assert!(rows.len() >= 50, "{} rules are listed", rows.len());
    for row in &rows {
        let (judge, places) = (row[row.len() - 1], row[row.len() - 2]);
        let test = judge.trim_matches('`');
        match judge.strip_prefix("plant ").map(|plant| plant.trim_matches('`')) {
            Some(plant) => assert!(plants.contains(&format!("\n| {plant} |")), "there is no plant {plant}"),
            None => assert!(tests.contains(&format!("#[test]\nfn {test}()")), "there is no test {test}"),
        }
        let (mut code, mut functions) = (String::new(), Vec::new());
        for place in quoted(places) {
            match place.ends_with(".rs") {
                true => code += &read(&format!("crates/node/src/{place}")),
                false => functions.push(place),
            }
        }
        assert!(!code.is_empty(), "{test} names no file");
        for function in functions {
            assert!(code.contains(&format!("fn {function}")), "{places}: there is no {function}");
        }
    }
    for test in tests.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split("()").next()) {
        let named = page.contains(&format!("`{test}`"));
        assert!(named || test == "a_node_answers_over_a_wire_as_it_does_directly", "{test} is not listed");
    }
}

#[test]
fn exactly_the_bugs_that_the_model_of_collection_plants_are_listed() {
    let planted = read("crates/protocol/src/collection/planted.rs");
    let (_, body) = planted.split_once("enum Bug {\n").expect("the model names its bugs");
    let (body, _) = body.split_once("\n}").expect("an enum ends");
    let bugs: Vec<&str> = body
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_suffix(','))
        .filter(|line| !line.starts_with('/'))
        .collect();
    assert!(bugs.len() >= 20, "{bugs:?}");
    let page = read("docs/design/drivers.md");
    let listed: Vec<&str> = rows(&page)
        .into_iter()
        .filter(|row| row.len() == 4)
        .flat_map(|row| quoted(row[1]).collect::<Vec<_>>())
        .collect();
    for bug in &bugs {
        assert!(listed.contains(bug), "{bug} is not listed");
    }
    for bug in listed {
        assert!(bugs.contains(&bug), "{bug} is no bug of the model");
    }
}
