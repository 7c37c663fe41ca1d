//! Reading Cargo files, and the rule that every crate takes licence, lints and versions from the workspace.

use toml::Table;

use super::{Offence, Tree};

/// Every crate inherits licence and lints, and the licence is the one we ship under.
pub(crate) const RULE: &str = "manifest";

const WHY: &str =
    "one licence, one set of lints and one version of each library hold for the whole workspace";

/// A dependency as a crate's Cargo file names it.
pub(crate) struct Dependency {
    /// Name of the package.
    pub(crate) name: String,
    /// Whether the version comes from the workspace.
    pub(crate) inherited: bool,
    /// Line in the Cargo file.
    pub(crate) line: usize,
}

/// The Cargo files of the workspace's crates, parsed; one that cannot be parsed is Cargo's to complain about.
pub(crate) fn manifests(tree: &Tree) -> impl Iterator<Item = (&str, &str, Table)> {
    packages(tree).filter(|(_, _, table)| !table.contains_key("workspace"))
}

/// Those, and the packages that are workspaces of their own, such as one that needs another compiler.
fn packages(tree: &Tree) -> impl Iterator<Item = (&str, &str, Table)> {
    tree.ending("Cargo.toml").filter(|(path, _)| *path != "Cargo.toml").filter_map(|(path, text)| {
        let table: Table = text.parse().ok()?;
        table.contains_key("package").then_some((path, text, table))
    })
}

/// Everything that a crate depends on: normally, for its build and for its tests, on any target.
pub(crate) fn dependencies(text: &str, manifest: &Table) -> Vec<Dependency> {
    let mut found = Vec::new();
    let targets = manifest.get("target").and_then(|targets| targets.as_table());
    let tables = std::iter::once(manifest)
        .chain(targets.into_iter().flat_map(|targets| targets.values().filter_map(|value| value.as_table())));
    for table in tables {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let entries = table.get(kind).and_then(|entries| entries.as_table());
            for (key, value) in entries.into_iter().flatten() {
                let renamed = value.get("package").and_then(|package| package.as_str());
                found.push(Dependency {
                    name: renamed.unwrap_or(key).to_owned(),
                    inherited: value.get("workspace").and_then(|inherit| inherit.as_bool()) == Some(true),
                    line: line_of(text, key),
                });
            }
        }
    }
    found
}

/// Line on which `key` is set, from 1; 1 when it is not.
pub(crate) fn line_of(text: &str, key: &str) -> usize {
    let sets = |line: &str| {
        let rest = line.trim().trim_matches('[').strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
            || line.trim().trim_matches(['[', ']']).ends_with(&format!("dependencies.{key}"))
    };
    text.lines().position(sets).map_or(1, |index| index + 1)
}

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut offence = |path: &str, line: usize, what: String, mend: &str| {
        offences.push(Offence {
            path: path.to_owned(),
            line,
            rule: RULE,
            what,
            why: WHY,
            mend: mend.to_owned(),
        });
    };
    let root: Table = tree.text("Cargo.toml").and_then(|text| text.parse().ok()).unwrap_or_default();
    let package = root.get("workspace").and_then(|workspace| workspace.get("package"));
    if package.and_then(|package| package.get("license")).and_then(|license| license.as_str())
        != Some("Apache-2.0")
    {
        offence(
            "Cargo.toml",
            1,
            "the workspace's licence is not Apache-2.0".into(),
            "set license = \"Apache-2.0\"",
        );
    }
    for file in ["LICENSE", "NOTICE"] {
        if tree.text(file).is_none() {
            offence(file, 1, format!("{file} is missing"), "restore it; the licence asks for it");
        }
    }
    for (path, text, manifest) in packages(tree).filter(|(_, _, manifest)| manifest.contains_key("workspace"))
    {
        if manifest["package"].get("license").and_then(|license| license.as_str()) != Some("Apache-2.0") {
            offence(
                path,
                line_of(text, "name"),
                "the licence is not Apache-2.0".into(),
                "license = \"Apache-2.0\"",
            );
        }
    }
    for (path, text, manifest) in manifests(tree) {
        let inherits = |table: Option<&toml::Value>| {
            table.and_then(|value| value.get("workspace")).and_then(|value| value.as_bool()) == Some(true)
        };
        if !inherits(manifest["package"].get("license")) {
            offence(
                path,
                line_of(text, "name"),
                "the licence is not inherited".into(),
                "license.workspace = true",
            );
        }
        if !inherits(manifest.get("lints")) {
            offence(path, 1, "the lints are not inherited".into(), "add [lints] with workspace = true");
        }
        for dependency in dependencies(text, &manifest).iter().filter(|dependency| !dependency.inherited) {
            offence(
                path,
                dependency.line,
                format!("`{}` is not taken from the workspace", dependency.name),
                "declare it in the root Cargo.toml and write `name.workspace = true` here",
            );
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_crate_on_its_own_terms_is_an_offence() {
        let tree = Tree::planted(&[
            ("Cargo.toml", "[workspace.package]\nlicense = \"MIT\"\n"),
            ("LICENSE", ""),
            ("fuzz/Cargo.toml", "[workspace]\n[package]\nname = \"fuzz\"\n[dependencies]\nbytes = \"1\"\n"),
            ("crates/good/Cargo.toml", "[package]\nlicense.workspace = true\n[lints]\nworkspace = true\n"),
            (
                "crates/bad/Cargo.toml",
                "[package]\nname = \"bad\"\nlicense = \"MIT\"\n[dependencies]\nserde = \"1\"\n\
                 [target.'cfg(unix)'.dev-dependencies.libc]\nversion = \"1\"\n",
            ),
        ]);
        expect![[r#"
            Cargo.toml:1 the workspace's licence is not Apache-2.0
            NOTICE:1 NOTICE is missing
            fuzz/Cargo.toml:3 the licence is not Apache-2.0
            crates/bad/Cargo.toml:2 the licence is not inherited
            crates/bad/Cargo.toml:1 the lints are not inherited
            crates/bad/Cargo.toml:5 `serde` is not taken from the workspace
            crates/bad/Cargo.toml:6 `libc` is not taken from the workspace
        "#]]
        .assert_eq(&super::super::brief(&check(&tree)));
    }
}
