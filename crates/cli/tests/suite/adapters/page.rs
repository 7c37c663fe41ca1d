//! The conversations of `docs/reference/adapters.md`, held with the programs.

use serde_json::{Value as Json, json};

use super::speaking::{Local, Speaking, await_some};
use super::tontine::words;
use crate::cluster::{Cluster, TONTINE};

const PAGE: &str = include_str!("../../../../../docs/reference/adapters.md");

/// Requests and answers below a heading, with this in place of that.
fn conversation(heading: &str, instead: &[(&str, &str)]) -> Vec<(String, Json)> {
    let section = PAGE.split(heading).nth(1).expect("the page has the heading");
    let block = section.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let block = instead.iter().fold(block.to_owned(), |block, (that, this)| block.replace(that, this));
    let lines: Vec<&str> = block.lines().collect();
    let pairs = lines.chunks(2).map(|pair| {
        let answer = pair[1].strip_prefix("◀ ").unwrap();
        (pair[0].strip_prefix("▶ ").unwrap().to_owned(), serde_json::from_str(answer).unwrap())
    });
    pairs.collect()
}

/// Whether an answer is as the page has it. What differs from run to run is any number, and `…` any text.
fn is_as(page: &Json, answer: &Json, field: &str) -> bool {
    match (page, answer) {
        (Json::Object(page), Json::Object(answer)) => {
            page.len() == answer.len()
                && page
                    .iter()
                    .all(|(field, one)| answer.get(field).is_some_and(|other| is_as(one, other, field)))
        }
        (Json::Array(page), Json::Array(answer)) => {
            page.len() == answer.len() && page.iter().zip(answer).all(|(one, other)| is_as(one, other, field))
        }
        (Json::Number(_), Json::Number(_)) if ["value", "age_ms"].contains(&field) => true,
        (Json::String(page), Json::String(answer)) => is_text_as(page, answer),
        _ => page == answer,
    }
}

/// Whether a text is as the page has it.
fn is_text_as(page: &str, answer: &str) -> bool {
    let mut parts = page.split('…');
    let Some(mut rest) = answer.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut ends = page == answer;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        ends = part.is_empty() || rest.is_empty();
    }
    ends
}

/// Holds a conversation. What begins something is asked once, and how far it is until it is as the page has it.
fn hold(adapter: &mut Speaking, conversation: &[(String, Json)]) {
    for (request, page) in conversation {
        let method: Json = serde_json::from_str(request).unwrap();
        let looks = ["list", "observe", "evidence"].iter().any(|one| method["method"] == **one);
        let mut last = Json::Null;
        await_some(&format!("{request} is answered by {page}"), || {
            adapter.send(request);
            last = adapter.answer();
            let found = is_as(page, &last, "").then_some(());
            assert!(looks || found.is_some(), "{request}\n is answered by {last}\n and not by  {page}");
            found
        });
    }
}

#[test]
fn the_page_has_what_the_local_adapter_answers() {
    let local = Local::new(3);
    let first = local.further[0].trim_start_matches("--addresses=").split('-').next().unwrap().to_owned();
    let told = conversation("### A conversation with `tontine adapter local`", &[("127.0.0.10", &first)]);
    hold(&mut local.start(), &told);
}

#[test]
fn the_page_has_what_the_adapter_of_tontine_answers() {
    let cluster = Cluster::with(3, &["--partitions=64"]);
    cluster.run(&["balance", "off"]).exits(0);
    let local = Local::new(3);
    let mut engine = Speaking::start(&words(&cluster, &[]));
    let script = engine.call("boot", json!({ "token": "k3f9-1" }))["script"].clone();
    local.start().call("ensure", json!({ "token": "k3f9-1", "type": "local", "script": script }));
    let address = local.list()[0]["address"].as_str().unwrap().to_owned();
    let coordination = cluster.data().join("coordination").display().to_string();
    let port = format!(":{}", cluster.base + 9);
    let instead = [
        ("127.0.0.10", address.as_str()),
        ("/usr/bin/tontine", TONTINE),
        ("/srv/coordination", &coordination),
        (":7401", &port),
    ];
    hold(&mut engine, &conversation("### A conversation with `tontine adapter tontine`", &instead));
}
