//! The page of planted bugs is true: each bug has its row, the seed of the row convicts it, and the same run without
//! the bug is clean.

use sim::catalogue;
use sim::plant::Plant;
use sim::run::play;
use sim::swarm::Setup;

const MEND: &str = "run `cargo run --profile proof -p sim -- plant all --page > docs/design/plants.md`";

#[test]
fn each_planted_bug_is_convicted_by_the_seed_that_its_row_names() {
    let page = catalogue::PAGE;
    let seeds = catalogue::seeds(page);
    let listed: Vec<Plant> = seeds.iter().map(|(plant, _)| *plant).collect();
    assert_eq!(listed, Plant::ALL, "{MEND}");
    assert_eq!(catalogue::page(&seeds).expect("the sources are there"), page, "{MEND}");
    for (plant, seed) in seeds {
        assert!(catalogue::convicts(plant, seed), "{plant:?} survives seed {seed}: {MEND}");
        let innocent = Setup { plant: None, ..Setup::planted(seed, plant) };
        assert_eq!(play(innocent).violations, [], "{plant:?}: without the bug the same run is clean");
    }
}
