//! The rule that no two rooms of a crate import each other, be it through third ones.
//!
//! A room is a module at the top of a crate: `crates/model/src/ring.rs` and all below `ring` are the room `ring`.
//! Rooms that meet in a circle are read, changed and tested together or not at all. What both sides need belongs into
//! a room below them.
//!
//! It follows `use crate::…`, paths that are written out, `super` up to the top, and names that `lib.rs` hands on.
//! Items for tests are left aside. It does not follow `super` in a module within a file, macros, or names that reach
//! a file by `*`.
//!
//! [`LEFT`] has the circles from before the rule. It only shrinks: what is mended must leave it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::source::Source;
use super::tree::crate_of;
use super::{Offence, Tree};

/// Rooms of a crate import each other in one direction only.
pub(crate) const RULE: &str = "rooms";

/// This file, where the list is.
const DOCUMENT: &str = "xtask/src/tidy/rooms.rs";
const WHY: &str = "rooms in a circle are understood together or not at all; a room between them is missing";

/// Crates and the rooms of one circle, which nobody mended yet.
const LEFT: &[(&str, &[&str])] = &[];

/// Where one room names another for the first time: file and line.
type Place<'a> = (&'a str, usize);

/// The rooms of one crate, and what each names of the others.
#[derive(Default)]
struct Rooms<'a> {
    arrows: BTreeMap<&'a str, BTreeMap<&'a str, Place<'a>>>,
}

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    check_but(tree, LEFT)
}

/// As [`check`], where `left` may be there, and must be.
fn check_but(tree: &Tree, left: &[(&str, &[&str])]) -> Vec<Offence> {
    let crates: BTreeSet<&str> = tree.rust().filter_map(|(path, _)| crate_of(path)).collect();
    let mut offences = Vec::new();
    for name in crates {
        let rooms = Rooms::of(tree, name);
        let circles = rooms.circles();
        for circle in &circles {
            let members: Vec<&str> = circle.iter().copied().collect();
            if !left.contains(&(name, members.as_slice())) {
                offences.push(rooms.offence(name, circle));
            }
        }
        let listed = left.iter().filter(|(owner, _)| *owner == name).map(|(_, rooms)| *rooms);
        let gone = listed.filter(|rooms| !circles.contains(&rooms.iter().copied().collect()));
        offences.extend(gone.map(|rooms| mended(name, rooms)));
    }
    offences
}

/// The offence of an entry of the list that names no circle.
fn mended(name: &str, rooms: &[&str]) -> Offence {
    Offence {
        path: DOCUMENT.to_owned(),
        line: 1,
        rule: RULE,
        what: format!("`LEFT` has a circle of `{name}` that is no more: {}", rooms.join(", ")),
        why: "a circle that may come back does",
        mend: "delete the entry, or the rooms that left the circle".to_owned(),
    }
}

impl<'a> Rooms<'a> {
    fn of(tree: &'a Tree, name: &str) -> Rooms<'a> {
        let home = format!("crates/{name}/src/");
        let files: Vec<(&str, &str, &Source)> = tree
            .rust()
            .filter_map(|(path, source)| Some((path, path.strip_prefix(&home)?, source)))
            .filter(|(path, _, _)| !tree.is_test(path))
            .filter_map(|(path, below, source)| Some((path, below.strip_suffix(".rs")?, source)))
            .collect();
        let names: BTreeSet<&str> = files.iter().filter_map(|(_, below, _)| room(below)).collect();
        let roots = files.iter().filter(|(_, below, _)| matches!(*below, "lib" | "main"));
        let handed_on: BTreeMap<String, &str> =
            roots.flat_map(|(_, _, source)| handed_on(source, &names)).collect();
        let mut rooms = Rooms::default();
        for (path, below, source) in files {
            let Some(from) = room(below) else { continue };
            let depth = below.split('/').filter(|part| *part != "mod").count();
            for used in source.paths() {
                let Some(first) = at_top(&used.segments, depth).filter(|_| !source.in_tests(used.at)) else {
                    continue;
                };
                let Some(to) = names.get(first).or_else(|| handed_on.get(first)) else { continue };
                if *to != from {
                    let place = (path, source.line(used.at));
                    rooms.arrows.entry(from).or_default().entry(to).or_insert(place);
                }
            }
        }
        rooms
    }

    /// All that a room names, be it through others.
    fn reached(&self, from: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut left = vec![from];
        while let Some(room) = left.pop() {
            for to in self.arrows.get(room).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(*to) {
                    left.push(to);
                }
            }
        }
        reached
    }

    /// The largest sets of rooms of which each names all others, be it through others.
    fn circles(&self) -> BTreeSet<BTreeSet<&'a str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.arrows.keys().map(|room| (*room, self.reached(room))).collect();
        let circle = |room: &str| {
            let back = |other: &&&'a str| reached.get(**other).is_some_and(|others| others.contains(room));
            reached[room].iter().filter(back).copied().collect::<BTreeSet<&str>>()
        };
        self.arrows.keys().map(|room| circle(room)).filter(|circle| !circle.is_empty()).collect()
    }

    /// The shortest way from a room to itself.
    fn way_round(&self, start: &'a str) -> Vec<(&'a str, &'a str, Place<'a>)> {
        let mut ways = VecDeque::from([(start, Vec::new())]);
        let mut seen = BTreeSet::new();
        while let Some((room, way)) = ways.pop_front() {
            for (to, place) in self.arrows.get(room).into_iter().flatten() {
                let mut longer = way.clone();
                longer.push((room, *to, *place));
                if *to == start {
                    return longer;
                }
                if seen.insert(*to) {
                    ways.push_back((to, longer));
                }
            }
        }
        Vec::new()
    }

    fn offence(&self, name: &str, circle: &BTreeSet<&'a str>) -> Offence {
        let ways = circle.iter().map(|room| self.way_round(room));
        let way = ways.min_by_key(Vec::len).expect("a circle has a room");
        let arrows = way.iter().map(|(from, to, (path, line))| format!("{from} to {to} at {path}:{line}"));
        let (_, _, (path, line)) = way[0];
        Offence {
            path: path.to_owned(),
            line,
            rule: RULE,
            what: format!(
                "rooms of `{name}` import each other in a circle ({}): {}",
                circle.iter().copied().collect::<Vec<_>>().join(", "),
                arrows.collect::<Vec<_>>().join(", "),
            ),
            why: WHY,
            mend: "move what both need into a room that both may import".to_owned(),
        }
    }
}

/// The room of a file, named from `src` on and without its ending; none of the root and of other binaries.
fn room(below: &str) -> Option<&str> {
    let first = below.split('/').next()?;
    (!matches!(first, "lib" | "main" | "bin")).then_some(first)
}

/// The first name below the top of the crate, if the path begins there; `depth` is how deep the module lies that has it.
fn at_top(segments: &[String], depth: usize) -> Option<&str> {
    let up = segments.iter().take_while(|segment| *segment == "super").count();
    match segments.first()?.as_str() {
        "crate" => segments.get(1),
        "super" if up == depth => segments.get(up),
        _ => None,
    }
    .map(String::as_str)
}

/// What the root of the crate imports from its rooms: the name, and the room.
fn handed_on<'a>(root: &Source, rooms: &BTreeSet<&'a str>) -> Vec<(String, &'a str)> {
    root.paths()
        .into_iter()
        .filter(|used| used.imported)
        .filter_map(|used| {
            let path = used.segments.strip_prefix(&["crate".to_owned()]).unwrap_or(&used.segments);
            let [room, .., name] = path else { return None };
            Some((name.clone(), *rooms.get(room.as_str())?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    #[test]
    fn rooms_that_import_each_other_are_an_offence_and_say_where() {
        let tree = Tree::planted(&[
            ("crates/a/src/lib.rs", "mod ring;\nmod store;\nmod plan;\nmod node;\nuse ring::Ring;\n"),
            ("crates/a/src/ring.rs", "use crate::node::Id;\nuse crate::{plan::Plan, ring::part};\n"),
            ("crates/a/src/ring/part.rs", "use super::Ring;\n"),
            ("crates/a/src/plan/mod.rs", "fn f() -> crate::store::Store {}\n"),
            ("crates/a/src/store.rs", "//! Not crate::plan.\nuse crate::Ring;\n"),
            ("crates/a/src/node.rs", "pub struct Id;\n"),
            ("crates/b/src/up.rs", "use super::down::Down;\n"),
            ("crates/b/src/down/deep.rs", "fn f() {}\nfn g(_: super::super::up::Up) {}\n"),
        ]);
        expect![[r#"
            crates/a/src/plan/mod.rs:1 rooms of `a` import each other in a circle (plan, ring, store): plan to store at crates/a/src/plan/mod.rs:1, store to ring at crates/a/src/store.rs:2, ring to plan at crates/a/src/ring.rs:2
            crates/b/src/down/deep.rs:2 rooms of `b` import each other in a circle (down, up): down to up at crates/b/src/down/deep.rs:2, up to down at crates/b/src/up.rs:1
        "#]]
        .assert_eq(&brief(&check_but(&tree, &[])));
    }

    #[test]
    fn arrows_in_one_direction_within_a_room_and_in_tests_are_none() {
        let tree = Tree::planted(&[
            ("crates/a/src/lib.rs", "mod ring;\nmod store;\nuse store::Store;\n"),
            (
                "crates/a/src/ring.rs",
                "mod part;\n#[cfg(test)]\nmod laws;\n#[cfg(test)]\nmod tests { use crate::store::Store; }\n",
            ),
            ("crates/a/src/ring/part.rs", "use super::Ring;\nuse crate::ring::Ring;\n"),
            ("crates/a/src/ring/laws.rs", "use crate::Store;\n"),
            ("crates/a/src/store.rs", "use crate::ring::Ring;\n"),
            ("crates/a/src/bin/play.rs", "use crate::store::Store;\n"),
            ("crates/b/src/ring.rs", "use a::store::Store;\n"),
        ]);
        assert_eq!(brief(&check_but(&tree, &[])), "");
    }

    #[test]
    fn a_circle_of_the_list_must_be_there_as_it_is_listed() {
        let tree = Tree::planted(&[
            ("crates/a/src/ring.rs", "use crate::plan::Plan;\n"),
            ("crates/a/src/plan.rs", "use crate::ring::Ring;\n"),
        ]);
        assert_eq!(brief(&check_but(&tree, &[("a", &["plan", "ring"])])), "");
        expect![[r#"
            crates/a/src/plan.rs:1 rooms of `a` import each other in a circle (plan, ring): plan to ring at crates/a/src/plan.rs:1, ring to plan at crates/a/src/ring.rs:1
            xtask/src/tidy/rooms.rs:1 `LEFT` has a circle of `a` that is no more: plan, ring, store
        "#]]
        .assert_eq(&brief(&check_but(&tree, &[("a", &["plan", "ring", "store"])])));
    }
}
