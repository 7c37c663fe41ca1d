//! The rules that keep a simulated cluster deterministic: no effect but through a port, no order but a fixed one.

use super::source::UsedPath;
use super::tree::crate_of;
use super::{Offence, Tree};

/// No clock, thread, socket, file or dice of the operating system outside the edge crates.
pub(crate) const EFFECT: &str = "effects";
/// No map whose iteration order differs from run to run where simulation runs.
pub(crate) const ORDER: &str = "fixed-order";
/// `select!` looks at its branches in a fixed order.
pub(crate) const SELECT: &str = "biased-select";

/// Crates that may touch the operating system; their simulated parts may not.
const EDGE: &[&str] = &["runtime", "coordination", "sources", "cli", "bench"];

/// Files of other crates that run outside of the simulated world: the command that starts it.
const EDGE_FILES: &[&str] = &["crates/sim/src/main.rs"];

/// Crates whose order of iteration is nobody's concern: nothing in them runs in simulation.
const UNORDERED: &[&str] = &["cli", "bench", "sources"];

struct Ban {
    path: &'static str,
    /// Paths below it that are harmless.
    but: &'static [&'static str],
    instead: &'static str,
}

const EFFECTS: &[Ban] = &[
    Ban { path: "std::time::Instant", but: &[], instead: "`runtime::Clock::now` and `runtime::Moment`" },
    Ban { path: "std::time::SystemTime", but: &[], instead: "`runtime::Clock::wall`" },
    Ban { path: "std::time::UNIX_EPOCH", but: &[], instead: "`runtime::Clock::wall`" },
    Ban { path: "std::thread", but: &["panicking"], instead: "`runtime::Tasks`" },
    Ban { path: "std::fs", but: &[], instead: "`runtime::Disk`" },
    Ban {
        path: "std::net",
        but: &[
            "IpAddr",
            "Ipv4Addr",
            "Ipv6Addr",
            "SocketAddr",
            "SocketAddrV4",
            "SocketAddrV6",
            "AddrParseError",
        ],
        instead: "`runtime::Network`",
    },
    Ban { path: "std::process", but: &["Termination"], instead: "the command line's own crate" },
    Ban { path: "std::env", but: &[], instead: "a setting that is read at the edge and handed down" },
    Ban { path: "std::io::stdin", but: &[], instead: "the command line's own crate" },
    Ban { path: "tokio::time", but: &[], instead: "`runtime::Clock`" },
    Ban { path: "tokio::spawn", but: &[], instead: "`runtime::Tasks::spawn`" },
    Ban {
        path: "tokio::task",
        but: &["yield_now", "unconstrained", "coop"],
        instead: "`runtime::Tasks::spawn`, whose end the future itself reports",
    },
    Ban { path: "tokio::net", but: &[], instead: "`runtime::Network`" },
    Ban { path: "tokio::fs", but: &[], instead: "`runtime::Disk`" },
    Ban { path: "tokio::process", but: &[], instead: "the command line's own crate" },
    Ban { path: "tokio::signal", but: &[], instead: "the command line's own crate" },
    Ban { path: "tokio::runtime", but: &[], instead: "`runtime::Tasks`" },
    Ban { path: "rand", but: &[], instead: "`runtime::Entropy`" },
    Ban { path: "getrandom", but: &[], instead: "`runtime::Entropy`" },
];

const FIXED: &str = "`BTreeMap`/`BTreeSet`, or hashbrown's with a fixed hasher named in the type";

const ORDERS: &[Ban] = &[
    Ban { path: "std::collections::HashMap", but: &[], instead: FIXED },
    Ban { path: "std::collections::HashSet", but: &[], instead: FIXED },
    Ban { path: "std::collections::hash_map", but: &["DefaultHasher"], instead: FIXED },
    Ban { path: "std::collections::hash_set", but: &[], instead: FIXED },
    Ban { path: "std::hash::RandomState", but: &[], instead: FIXED },
    // These constructors exist only for the default hasher, which hashbrown seeds differently in each process.
    Ban { path: "hashbrown::HashMap::new", but: &[], instead: FIXED },
    Ban { path: "hashbrown::HashMap::with_capacity", but: &[], instead: FIXED },
    Ban { path: "hashbrown::HashSet::new", but: &[], instead: FIXED },
    Ban { path: "hashbrown::HashSet::with_capacity", but: &[], instead: FIXED },
    Ban { path: "hashbrown::DefaultHashBuilder", but: &[], instead: FIXED },
];

impl Ban {
    /// Whether using `path` is using what is banned; a `*` import that would bring it in counts.
    fn catches(&self, path: &UsedPath) -> bool {
        let banned: Vec<&str> = self.path.split("::").collect();
        let (last, before) = path.segments.split_last().expect("a path has a segment");
        if path.imported && last == "*" && banned.len() > before.len() && banned[..before.len()] == *before {
            return !before.is_empty();
        }
        let below =
            path.segments.len() > banned.len() && self.but.contains(&path.segments[banned.len()].as_str());
        path.segments.len() >= banned.len()
            && path.segments.iter().zip(&banned).all(|(segment, banned)| segment == banned)
            && (banned.len() > 1 || path.segments.len() > 1)
            && !below
    }
}

/// See [`EFFECT`].
pub(crate) fn check_effects(tree: &Tree) -> Vec<Offence> {
    let why = "everything outside the edge crates must run unchanged in simulation, where a seed decides all";
    let applies = |path: &str, in_tests: bool| {
        let Some(name) = crate_of(path) else { return false };
        let outside = EDGE.contains(&name) && !path.contains("simulated") || EDGE_FILES.contains(&path);
        // A unit test may use a scratch folder; the simulator's own tests may not even that.
        !outside && (!in_tests || name == "sim")
    };
    uses(tree, EFFECT, EFFECTS, why, applies)
}

/// See [`ORDER`].
pub(crate) fn check_order(tree: &Tree) -> Vec<Offence> {
    let why = "std's maps iterate in another order in each process, so a failing seed could not be replayed";
    let applies = |path: &str| crate_of(path).is_some_and(|name| !UNORDERED.contains(&name));
    let mut offences = uses(tree, ORDER, ORDERS, why, |path, _| applies(path));
    for (path, source) in tree.rust().filter(|(path, _)| applies(path)) {
        let unnamed = |used: &UsedPath| {
            let generics = match used.segments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                ["hashbrown", "HashMap"] => 3,
                ["hashbrown", "HashSet"] => 2,
                _ => return false,
            };
            (1..generics).contains(&used.generics)
        };
        offences.extend(source.paths().into_iter().filter(unnamed).map(|used| Offence {
            path: path.to_owned(),
            line: source.line(used.at),
            rule: ORDER,
            what: format!("`{}` without a hasher in its type", used.segments.join("::")),
            why,
            mend: format!("use {FIXED}"),
        }));
    }
    offences
}

fn uses(
    tree: &Tree,
    rule: &'static str,
    bans: &[Ban],
    why: &'static str,
    applies: impl Fn(&str, bool) -> bool,
) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, source) in tree.rust().filter(|(path, _)| crate_of(path).is_some()) {
        let test_file = tree.is_test(path);
        for used in source.paths() {
            if !applies(path, test_file || source.in_tests(used.at)) {
                continue;
            }
            let Some(ban) = bans.iter().find(|ban| ban.catches(&used)) else { continue };
            offences.push(Offence {
                path: path.to_owned(),
                line: source.line(used.at),
                rule,
                what: format!("`{}` is out of bounds here", used.segments.join("::")),
                why,
                mend: format!("use {}", ban.instead),
            });
        }
    }
    offences
}

/// See [`SELECT`].
pub(crate) fn check_select(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, source) in tree.rust().filter(|(path, _)| crate_of(path).is_some()) {
        for (at, inside) in source.invocations(&["select"]) {
            if source.code()[inside].trim_start().starts_with("biased;") {
                continue;
            }
            offences.push(Offence {
                path: path.to_owned(),
                line: source.line(at),
                rule: SELECT,
                what: "`select!` without `biased;`".into(),
                why: "the branches' order is drawn from a random number that no seed decides",
                mend: "open the block with `biased;`, the most urgent branch first".into(),
            });
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    const EFFECTFUL: &str = "use std::{net::SocketAddr, fs};\nuse std::time::{Duration, Instant};\nuse tokio::*;\n\
        fn f() {\n    Instant::now();\n    tokio::spawn(async {});\n    std::thread::sleep(Duration::ZERO);\n    \
        rand::rng();\n    tokio::task::yield_now();\n    let rand = rand(1);\n}\n// std::fs::read\n\
        #[cfg(test)]\nmod tests { use std::fs::read; }\n";

    #[test]
    fn effects_outside_the_edge_crates_are_offences() {
        let tree = Tree::planted(&[
            ("crates/node/src/serve.rs", EFFECTFUL),
            ("crates/runtime/src/os.rs", EFFECTFUL),
            ("crates/node/tests/suite/main.rs", EFFECTFUL),
        ]);
        expect![[r#"
            crates/node/src/serve.rs:1 `std::fs` is out of bounds here
            crates/node/src/serve.rs:2 `std::time::Instant` is out of bounds here
            crates/node/src/serve.rs:3 `tokio::*` is out of bounds here
            crates/node/src/serve.rs:5 `std::time::Instant::now` is out of bounds here
            crates/node/src/serve.rs:6 `tokio::spawn` is out of bounds here
            crates/node/src/serve.rs:7 `std::thread::sleep` is out of bounds here
            crates/node/src/serve.rs:8 `rand::rng` is out of bounds here
        "#]]
        .assert_eq(&brief(&check_effects(&tree)));
    }

    #[test]
    fn simulated_parts_of_edge_crates_and_tests_of_the_simulator_are_bound_too() {
        let tree = Tree::planted(&[
            ("crates/runtime/src/disk/simulated.rs", "use std::fs;\n"),
            ("crates/sim/tests/suite/main.rs", "use std::fs;\n"),
            ("crates/sim/src/main.rs", "use std::env;\n"),
        ]);
        assert_eq!(check_effects(&tree).len(), 2);
    }

    #[test]
    fn a_module_for_tests_only_may_use_files() {
        let tree = Tree::planted(&[
            ("crates/storage/src/log.rs", "#[cfg(test)]\nmod scratch;\n"),
            ("crates/storage/src/log/scratch.rs", "use std::fs;\n"),
            ("crates/storage/src/log/segment.rs", "use std::fs;\n"),
        ]);
        assert_eq!(
            brief(&check_effects(&tree)),
            "crates/storage/src/log/segment.rs:1 `std::fs` is out of bounds here\n"
        );
    }

    #[test]
    fn maps_with_random_order_are_offences_where_simulation_runs() {
        let maps = "use std::collections::{BTreeMap, HashMap};\nuse hashbrown as fast;\n\
            fn f() { fast::HashMap::<u8, u8>::default(); fast::HashSet::new(); }\n\
            type Named = fast::HashMap<u8, u8, Fixed>;\ntype Unnamed = fast::HashSet<(u8, u8)>;\n\
            #[cfg(test)]\nmod tests { use std::collections::HashSet; }\n";
        let tree = Tree::planted(&[("crates/model/src/ring.rs", maps), ("crates/cli/src/main.rs", maps)]);
        expect![[r#"
            crates/model/src/ring.rs:1 `std::collections::HashMap` is out of bounds here
            crates/model/src/ring.rs:3 `hashbrown::HashSet::new` is out of bounds here
            crates/model/src/ring.rs:7 `std::collections::HashSet` is out of bounds here
            crates/model/src/ring.rs:3 `hashbrown::HashMap` without a hasher in its type
            crates/model/src/ring.rs:5 `hashbrown::HashSet` without a hasher in its type
        "#]]
        .assert_eq(&brief(&check_order(&tree)));
    }

    #[test]
    fn select_without_biased_is_an_offence() {
        let text = "fn f() {\n    tokio::select! { biased; a = b => {} }\n    select! {\n        a = b => {}\n    }\n}\n\
            // select! { }\n";
        let tree = Tree::planted(&[("crates/runtime/src/a.rs", text)]);
        assert_eq!(brief(&check_select(&tree)), "crates/runtime/src/a.rs:3 `select!` without `biased;`\n");
    }
}
