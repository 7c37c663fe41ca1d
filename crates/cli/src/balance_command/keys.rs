//! The hottest keys of a partition, by what its replicas noted.

use std::collections::BTreeMap;

use client::Client;
use model::PartitionId;
use protocol::report::{HotKey, Parts};
use serde_json::{Value as Json, json};

use crate::text::table;

/// Keys that are shown.
const SHOWN: usize = 5;
/// From this many notes on a share says something.
const NOTED_MIN: u64 = 50;
/// A key with so large a share of a partition is too hot to be helped by a cut, in percent.
const HOT_PERCENT: u64 = 40;

/// The keys of a partition that were noted most often.
pub(super) struct Hottest {
    keys: Vec<(String, u64)>,
    of: u64,
}

/// Asks all nodes; those that do not answer are passed over.
pub(super) async fn hottest(client: &Client, partition: PartitionId) -> Hottest {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| client.report(node.id, Parts::KEYS));
    let told = futures_util::future::join_all(asks).await;
    let told = told.into_iter().flatten().filter_map(|report| report.keys);
    Hottest::of(told.map(|keys| keys.into_iter().filter(|key| key.partition == partition).collect()))
}

impl Hottest {
    fn of(told: impl Iterator<Item = Vec<HotKey>>) -> Hottest {
        let (mut counts, mut of) = (BTreeMap::<String, u64>::new(), 0);
        for keys in told {
            of += keys.first().map_or(0, |key| key.of);
            keys.into_iter()
                .filter(|key| key.noted > 0)
                .for_each(|key| *counts.entry(key.key).or_default() += key.noted);
        }
        let mut keys: Vec<(String, u64)> = counts.into_iter().collect();
        keys.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        keys.truncate(SHOWN);
        Hottest { keys, of }
    }

    pub(super) fn json(&self) -> Json {
        let keys = self.keys.iter().map(|(key, noted)| json!({ "key": key, "noted": noted }));
        json!({ "keys": keys.collect::<Vec<_>>(), "noted": self.of })
    }

    pub(super) fn text(&self, partition: PartitionId) -> String {
        if self.of < NOTED_MIN {
            return format!("{partition} had too little work lately to tell its hottest keys\n");
        }
        let mut rows = vec![vec!["KEY".to_owned(), "SHARE".to_owned()]];
        let share = |noted: u64| format!("{:.0}%", noted as f64 * 100.0 / self.of as f64);
        rows.extend(self.keys.iter().map(|(key, noted)| vec![key.clone(), share(*noted)]));
        let mut text = format!(
            "the hottest keys of {partition}, by {} operations noted lately:\n{}\n",
            self.of,
            table(&rows)
        );
        if let Some((key, noted)) = self.keys.first()
            && noted * 100 >= HOT_PERCENT * self.of
        {
            text.push_str(&format!(
                "{key} alone has so much that no cut helps: let native clients begin at any replica \
                 (`ClientOptions::spread`), or give its store a higher N (`tontine store set`); Redis clients cannot set the former\n"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replicas_noted_is_put_together_and_one_hot_key_is_named() {
        let key = |key: &str, noted, of| HotKey { partition: PartitionId(7), key: key.to_owned(), noted, of };
        let told = [
            vec![key("a", 70, 100), key("b", 10, 100)],
            vec![key("b", 40, 60), key("a", 20, 60)],
            Vec::new(),
        ];
        let hottest = Hottest::of(told.into_iter());
        assert_eq!(hottest.keys, [("a".to_owned(), 90), ("b".to_owned(), 50)]);
        let text = hottest.text(PartitionId(7));
        assert!(text.contains("by 160 operations") && text.contains("a alone has so much"), "{text}");
        let even = Hottest::of([vec![key("a", 20, 100), key("b", 19, 100)]].into_iter());
        assert!(!even.text(PartitionId(7)).contains("alone"));
        let idle = Hottest::of([vec![key("a", 20, 49)]].into_iter());
        assert!(idle.text(PartitionId(7)).contains("too little work"));
    }
}
