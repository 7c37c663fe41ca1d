//! Holds the real tree against the rules, and the program against its contract.

use xtask::tidy::{Tree, check, workspace_root};

#[test]
fn the_tree_is_tidy() {
    let tree = Tree::read(&workspace_root()).expect("the checkout can be read");
    assert!(tree.holds("ARCHITECTURE.md"), "an empty tree would pass everything");
    let offences: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
    assert!(offences.is_empty(), "{} offences\n{}", offences.len(), offences.join("\n\n"));
}

#[test]
fn an_offence_says_where_what_why_and_how_to_mend() {
    let offences =
        check(&Tree::planted(&[("crates/model/src/key.rs", "//! Keys and what they are.\nuse std::fs;\n")]));
    let effect =
        offences.iter().find(|offence| offence.rule == "effects").expect("the planted offence is found");
    expect_test::expect![[r#"
        crates/model/src/key.rs:2: `std::fs` is out of bounds here [effects]
            why:  everything outside the edge crates must run unchanged in simulation, where a seed decides all
            mend: use `runtime::Disk`"#]]
    .assert_eq(&effect.to_string());
}

#[test]
fn a_folder_that_is_no_checkout_is_refused() {
    let folder = std::env::temp_dir().join(format!("tidy-no-checkout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a scratch folder can be made");
    let refused = Tree::read(&folder);
    std::fs::remove_dir(&folder).expect("it is still empty");
    assert!(refused.is_err());
}
