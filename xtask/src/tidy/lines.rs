//! How many lines of Rust the tree has, by crate: of the product, and of its tests.
//!
//! A line is a test's where it is compiled for tests only: below `tests` or `examples`, in an item under `#[cfg(test)]`,
//! or in the file of a module that is declared so. Everything else is the product.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Tree;
use super::tree::crate_of;

/// Lines of one crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    product: usize,
    tests: usize,
}

/// A table of the crates, and of all of them together.
pub fn table(tree: &Tree) -> String {
    let mut crates: BTreeMap<&str, Lines> = BTreeMap::new();
    for (path, source) in tree.rust() {
        let name = crate_of(path).or_else(|| path.split('/').next()).unwrap_or(path);
        let lines = crates.entry(name).or_default();
        let mut at = 0;
        for line in source.text().split_inclusive('\n') {
            match tree.is_test(path) || source.in_tests(at) {
                true => lines.tests += 1,
                false => lines.product += 1,
            }
            at += line.len();
        }
    }
    let all = crates.values().fold(Lines::default(), |all, lines| Lines {
        product: all.product + lines.product,
        tests: all.tests + lines.tests,
    });
    let mut text = format!("{:<14} {:>9} {:>9}\n", "lines of Rust", "product", "tests");
    for (name, Lines { product, tests }) in crates.into_iter().chain([("all", all)]) {
        writeln!(text, "{name:<14} {product:>9} {tests:>9}").expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn lines_are_counted_by_crate_and_by_whether_tests_alone_compile_them() {
        let tree = Tree::planted(&[
            (
                "crates/a/src/lib.rs",
                "//! A.\nfn a() {}\n#[cfg(test)]\nmod driven;\n#[cfg(test)]\nmod tests {\n}\n",
            ),
            ("crates/a/src/driven/mod.rs", "mod deep;\n"),
            ("crates/a/src/driven/deep.rs", "fn b() {}\n"),
            ("crates/a/tests/suite/main.rs", "fn c() {}\n"),
            ("xtask/src/main.rs", "fn main() {}\n"),
            ("xtask/README.md", "words\n"),
        ]);
        expect![[r#"
            lines of Rust    product     tests
            a                      2         8
            xtask                  1         0
            all                    3         8
        "#]]
        .assert_eq(&table(&tree));
    }
}
