//! `tontine range`: the entries of a feed, in a store that keeps windows.
//!
//! Must never: leave out an entry that could not be read. A range that is not certain ends with an error.

use std::process::ExitCode;

use client::Found;
use model::Cluster;
use serde_json::{Value as Json, json};
use wire::messages::RequestOptions;

use crate::context::CliContext;
use crate::failure::CliError;
use crate::keys;
use crate::output::print;
use crate::text::{bytes_json, shown, table};

/// Pages that one command reads, at most: a million numbers.
const PAGES_MAX: u64 = 1_000;

/// Which entries of which feed.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine store create feeds --placement windows --key 'feed:{group}:{sequence}'
  tontine put feed:anna:7 hello -s feeds
  tontine range feeds anna 0 99       numbers 0 to 99 of anna's feed
  tontine range news 100 199          in a store whose keys name no group")]
pub struct RangeArguments {
    /// The store.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The group, if keys name one, and the first and the last number.
    #[arg(required = true, num_args = 2..=3, value_name = "[GROUP] FROM TO")]
    pub range: Vec<String>,
    /// Entries to show, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub limit: u64,
}

/// `tontine range`.
pub(crate) async fn range(shared: CliContext, arguments: RangeArguments) -> Result<ExitCode, CliError> {
    let number = |text: &String| {
        let remedy = "a range is [GROUP] FROM TO, such as anna 0 99";
        text.parse::<u64>().map_err(|_| CliError::Usage(format!("{text:?} is no sequence number; {remedy}")))
    };
    let (group, from, to) = match &arguments.range[..] {
        [group, from, to] => (group.as_bytes(), number(from)?, number(to)?),
        [from, to] => (&b""[..], number(from)?, number(to)?),
        _ => unreachable!("there are two or three"),
    };
    let client = shared.client().await?;
    let store = client.store(&arguments.name)?;
    check(&client.cluster(), &arguments.name, !group.is_empty())?;
    if from > to {
        return Err(CliError::Usage(format!(
            "the range goes backwards, from {from} to {to}; give the lower number first"
        )));
    }
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let (mut entries, mut next, mut pages) = (Vec::new(), Some(from), 0);
    // However few entries there are: whoever goes on says so.
    while let Some(at) = next.filter(|_| entries.len() < limit && pages < PAGES_MAX) {
        pages += 1;
        let page = store.range(group, (at, to), &RequestOptions::default()).await?;
        entries.extend(page.entries);
        next = page.next;
    }
    if entries.len() > limit {
        next = Some(entries[limit].0);
        entries.truncate(limit);
    }
    let document = json!({ "entries": entries.iter().map(entry).collect::<Json>(), "next": next });
    print(shared.format(), &document, || {
        let mut rows = vec![["NUMBER", "VALUE"].map(str::to_owned).to_vec()];
        rows.extend(entries.iter().map(|(number, _, found)| {
            let values: Vec<String> = found.values().map(|value| shown(value)).collect();
            vec![number.to_string(), values.join(" | ")]
        }));
        let mut text = table(&rows);
        if let Some(next) = next {
            text.push_str(&format!("there may be more: go on from {next}\n"));
        }
        text
    });
    keys::tell_stale(&shared, entries.iter().map(|(_, _, found)| found));
    Ok(ExitCode::SUCCESS)
}

/// Refuses a range that the store cannot have.
fn check(cluster: &Cluster, name: &str, has_group: bool) -> Result<(), CliError> {
    let Some(windows) = cluster.store(name).and_then(|store| store.placement.windows()) else {
        return Err(CliError::Usage(format!(
            "store {name} keeps its keys by their hash, so it has no ranges; `tontine store create --help` says how to make \
             one that has"
        )));
    };
    let pattern = &windows.key;
    match (pattern.has_group(), has_group) {
        (true, false) => Err(CliError::Usage(format!(
            "keys of store {name} are {pattern}, so a range needs a group: tontine range {name} GROUP FROM TO"
        ))),
        (false, true) => Err(CliError::Usage(format!(
            "keys of store {name} are {pattern}, so a range has no group: tontine range {name} FROM TO"
        ))),
        _ => Ok(()),
    }
}

fn entry((number, key, found): &(u64, Vec<u8>, Found)) -> Json {
    let values: Vec<Json> = found.values().map(|value| bytes_json(value)).collect();
    json!({ "number": number, "key": bytes_json(key), "values": values, "sloppy": found.is_sloppy() })
}
