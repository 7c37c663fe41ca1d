//! Random plans and random kills under a mixed load with deletes, for as long as one likes.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::{Joined, RECORDS, fourth};
use crate::observe::{kill_headmaster, until};
use crate::traffic::Traffic;

/// Plans of one run, unless `TONTINE_PLANS` says how many.
const PLANS: u32 = 20;

/// Numbers that look random, and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl Joined {
    /// Creates a plan of some kind; nothing when there is nothing to move.
    fn create_any(&self, dice: &mut Dice) -> Option<u64> {
        let partition = dice.below(1024);
        let (one, next) = (partition.to_string(), (partition + 1).to_string());
        let words = match dice.below(10) {
            0 | 1 => vec!["spread"],
            2 => vec!["drain", "4"],
            3 => vec!["split", &one],
            4 => return self.create_merge(&one, &next),
            5 => vec!["double"],
            _ => return self.create_move(dice),
        };
        self.create(&words)
    }

    /// Creates a plan that takes some partitions from one node and gives them to another one.
    fn create_move(&self, dice: &mut Dice) -> Option<u64> {
        let keys: Vec<String> = (0..40).map(|_| format!("key-{}", dice.below(u64::from(RECORDS)))).collect();
        let words = ["route", "--json"].into_iter().chain(keys.iter().map(String::as_str));
        let routes = self.cluster.run(&words.collect::<Vec<_>>()).json();
        let from = 1 + dice.below(4);
        let to = 1 + (from + dice.below(3)) % 4;
        let is_replica = |route: &Json, node: u64| {
            route["replicas"].as_array().unwrap().iter().any(|replica| *replica == node)
        };
        let routes = routes.as_array().unwrap().iter();
        let movable = routes.filter(|route| is_replica(route, from) && !is_replica(route, to));
        let partitions: BTreeSet<String> = movable.map(|route| route["partition"].to_string()).collect();
        if partitions.is_empty() {
            return None;
        }
        let (from, to) = (from.to_string(), to.to_string());
        let words = ["move", "--from", &from, "--to", &to];
        self.create(&words.into_iter().chain(partitions.iter().map(String::as_str)).collect::<Vec<_>>())
    }

    /// Creates a plan that merges a partition with its neighbour: after splits ids say nothing of who that is, and the
    /// refusal does.
    fn create_merge(&self, one: &str, other: &str) -> Option<u64> {
        let created = self.cluster.run(&["plan", "create", "merge", one, other, "--json"]);
        if created.code == 0 {
            return created.json()["plan"].as_u64();
        }
        let (_, named) = created.stderr.split_once(" can be merged with p")?;
        let neighbour: String = named.chars().take_while(char::is_ascii_digit).collect();
        self.create(&["merge", one, &neighbour])
    }

    fn create(&self, words: &[&str]) -> Option<u64> {
        let created = self.cluster.run(&[&["plan", "create"], words, &["--json"]].concat());
        if created.code != 0 {
            println!("no plan of {words:?}: {}", created.stderr);
        }
        if created.code == 0 { created.json()["plan"].as_u64() } else { None }
    }

    /// Disturbs a plan that is carried out.
    fn disturb(&mut self, plan: u64, dice: &mut Dice) {
        let number = plan.to_string();
        let what = dice.below(6);
        println!("plan {plan}: disturbance {what}");
        match what {
            0 => kill_headmaster(&self.cluster),
            1 => {
                self.fourth.stop(Signal::KILL);
                self.fourth = fourth(&self.cluster, &[]);
                self.fourth.await_line("node 4");
            }
            2 => {
                let node = 1 + usize::try_from(dice.below(3)).unwrap();
                self.cluster.end_node(node, Signal::KILL);
                self.cluster.start_node_again(node);
            }
            // It may have ended meanwhile.
            3 => drop(self.cluster.run(&["plan", "abort", &number, "--no-wait"])),
            4 => {
                self.cluster.run(&["plan", "pause", &number]);
                self.cluster.run(&["plan", "resume", &number]);
            }
            _ => {}
        }
    }
}

#[test]
#[ignore = "takes minutes; TONTINE_PLANS=500 cargo test --profile proof -p cli random_plans -- --ignored plays more"]
fn random_plans_with_random_kills_keep_every_record_and_fail_no_request() {
    let mut joined = Joined::start();
    let traffic = Traffic::start(&joined.cluster);
    let plans = std::env::var("TONTINE_PLANS").map_or(PLANS, |plans| plans.parse().unwrap());
    let seed = std::env::var("TONTINE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut dice = Dice(seed);
    for _ in 0..plans {
        let plan = std::iter::repeat_with(|| joined.create_any(&mut dice)).flatten().next().unwrap();
        joined.cluster.run(&["plan", "apply", &plan.to_string(), "--no-wait"]).exits(0);
        std::thread::sleep(std::time::Duration::from_millis(dice.below(2_000)));
        joined.disturb(plan, &mut dice);
        let has_ended =
            |plan: &Json| ["done", "aborted"].contains(&plan["phase"].as_str().unwrap_or_default());
        let ended = until(&format!("plan {plan} has ended"), || joined.plan(plan), has_ended);
        println!("plan {plan}: {} {}", ended["document"]["wish"]["kind"], ended["phase"]);
        joined.check_records();
        traffic.await_more(20);
    }
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    heard.check(&joined.cluster);
}
