//! The table of planted bugs, `docs/design/plants.md`: printed by `sim plant all --page`, verified by a test.
//!
//! Bugs of whole clusters are run; bugs of machines are read from the sources of the tests that plant them.

use crate::plant::Plant;
use crate::run::play;
use crate::swarm::Setup;

/// Seeds within which a bug must be convicted.
pub const SEEDS_MAX: u64 = 30;

/// Enums of bugs that tests of a crate plant in their machines: the source, those of the tests, the layer, and the tests that convict all of them.
const MACHINES: [(&str, &[&str], &str, &[&str]); 4] = [
    (
        include_str!("../../protocol/src/quorum/planted.rs"),
        &[
            include_str!("../../protocol/src/quorum/get/explore.rs"),
            include_str!("../../protocol/src/quorum/write/explore.rs"),
            include_str!("../../protocol/src/quorum/probe/explore.rs"),
        ],
        "quorum machines",
        &[
            "a_planted_bug_in_a_get_is_found",
            "a_planted_bug_in_a_monotonic_get_is_found",
            "a_planted_bug_in_a_write_is_found",
            "a_planted_bug_in_a_question_is_found",
        ],
    ),
    (
        include_str!("../../protocol/src/quorum/stamp/explore/plants.rs"),
        &[include_str!("../../protocol/src/quorum/stamp/explore/mod.rs")],
        "stamping machine",
        &["a_planted_bug_in_stamping_is_found"],
    ),
    (
        include_str!("../../protocol/src/collection/planted.rs"),
        &[include_str!("../../protocol/src/collection/explore/scenarios.rs")],
        "collection rounds",
        &["every_planted_bug_is_found"],
    ),
    (
        include_str!("../../protocol/src/rebalance/steps/explore/plants.rs"),
        &[include_str!("../../protocol/src/rebalance/steps/explore.rs")],
        "steps of a move",
        &["a_planted_bug_in_a_change_of_numbers_is_found"],
    ),
];

/// The page as it is.
pub const PAGE: &str = include_str!("../../../docs/design/plants.md");

const HEAD: &str = "# Planted bugs

Each promise is broken on purpose, at the seam where an engineer could break it, and a judge convicts it.
`cargo run --profile proof -p sim -- plant all` runs those of whole clusters, and fails when one survives.
With `--page` it prints this page; the test `plants` verifies it.

## In whole clusters

A bug wraps a port or an engine. The invariants are those of `ARCHITECTURE.md`. The seed is the first that convicts: `sim run --seed N --plant NAME`.

| plant | promise | layer | invariant | seed |
|---|---|---|---|---|
";

const MIDDLE: &str = "
## In single machines

Tests of `protocol` explore these machines and must find each bug.
The sources, `planted.rs` and `explore/plants.rs`, say what each one breaks.
";

/// Whether a run of this seed convicts the plant, by the judge of the invariant that it breaks.
pub fn convicts(plant: Plant, seed: u64) -> bool {
    play(Setup::planted(seed, plant)).violations.iter().any(|found| found.invariant == plant.breaks())
}

/// The first seed that convicts the plant.
pub fn convicting_seed(plant: Plant) -> Option<u64> {
    (1..=SEEDS_MAX).find(|&seed| convicts(plant, seed))
}

/// The page, with the seed that convicts each plant.
///
/// # Errors
/// Names a test that is not there.
pub fn page(seeds: &[(Plant, u64)]) -> Result<String, String> {
    let mut page = HEAD.to_owned();
    for (plant, seed) in seeds {
        let (invariant, layer, promise) = plant.facts();
        page += &format!("| {plant:?} | {promise} | {layer} | {invariant} | {seed} |\n");
    }
    page += MIDDLE;
    for (source, rooms, layer, tests) in MACHINES {
        for test in tests {
            let there = rooms.iter().any(|room| room.contains(&format!("fn {test}(")));
            if !there {
                return Err(format!("no test of the {layer} is called {test}"));
            }
        }
        let (tests, bugs) = (tests.join("`, `"), bugs(source).join("\n"));
        page += &format!("\n### In the {layer}\n\nConvicted by `{tests}`.\n\n```text\n{bugs}\n```\n");
    }
    Ok(page)
}

/// The seeds that a page says.
pub fn seeds(page: &str) -> Vec<(Plant, u64)> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        Some((Plant::named(cells.get(1)?)?, cells.get(5)?.parse().ok()?))
    };
    page.lines().filter_map(row).collect()
}

/// The variants of the first enum of a source.
fn bugs(source: &str) -> Vec<&str> {
    let lines = source.lines().skip_while(|line| !line.contains("enum ")).skip(1);
    let lines = lines.map(str::trim).take_while(|line| *line != "}");
    lines.filter(|line| !line.starts_with("//")).filter_map(|line| line.strip_suffix(',')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_read_without_their_comments() {
        let source = "/// All.\nenum Bug {\n    /// One\n    /// rule.\n    First,\n    // Apart.\n    Second,\n}\nfn f() {}";
        assert_eq!(bugs(source), ["First", "Second"]);
    }

    #[test]
    fn a_page_tells_its_seeds() {
        let page = page(&[(Plant::LyingDisk, 3)]).expect("the sources are there");
        assert_eq!(seeds(&page), [(Plant::LyingDisk, 3)]);
        assert!(page.contains("StrictCountsHints") && page.contains("ForgetsTheFloor"));
    }
}
