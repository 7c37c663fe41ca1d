//! `tontine keys`: the keys of a store, partition by partition.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use ::bytes::Bytes;
use client::WalkOptions;
use runtime::Ports;

use crate::context::{CliContext, walkable};
use crate::durations;
use crate::export::{What, walk_store};
use crate::failure::CliError;
use crate::output::Stdout;
use crate::text::{Format, bytes_json, count, shown};

/// Which keys.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine keys                       every key of the default store, one on each line
  tontine keys --prefix session:     the keys that begin with session:
  tontine keys --prefix user: --limit 10
  tontine keys | wc -l

This command reads every record from R replicas, so it takes as long as an export. Keys that are written or deleted \
meanwhile may or may not be listed. The keys are not sorted. Unprintable keys are shown with escapes; -o json shows \
them exactly.")]
pub struct KeyListArguments {
    /// List only keys that begin with this text.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// List at most this many keys.
    #[arg(long, value_name = "COUNT", value_parser = limit)]
    pub limit: Option<u64>,
    /// How long to retry a partition that has too few replicas before the command fails.
    #[arg(long, default_value = "1m", value_parser = durations::parse, value_name = "DURATION")]
    pub patience: Duration,
    /// List the keys of this artifact of a read-only store, whether it is served or not.
    #[arg(long, value_name = "NUMBER")]
    pub artifact: Option<u64>,
}

fn limit(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "use a whole number from 1".to_owned())
}

/// Writes the keys as they come: there may be more than fit into memory.
struct Listing {
    format: Format,
    output: BufWriter<Stdout>,
    listed: u64,
}

impl Listing {
    fn begin(format: Format) -> std::io::Result<Listing> {
        let mut output = BufWriter::with_capacity(64 * 1024, Stdout);
        if format == Format::Json {
            output.write_all(b"{\"keys\":[")?;
        }
        Ok(Listing { format, output, listed: 0 })
    }

    fn key(&mut self, key: &Bytes) -> std::io::Result<()> {
        match self.format {
            Format::Json if self.listed == 0 => write!(self.output, "{}", bytes_json(key))?,
            Format::Json => write!(self.output, ",{}", bytes_json(key))?,
            // A key that holds a line end must not look like two.
            Format::Text if key.contains(&b'\n') => writeln!(self.output, "{}", key.escape_ascii())?,
            Format::Text => writeln!(self.output, "{}", shown(key))?,
        }
        self.listed += 1;
        Ok(())
    }

    fn end(mut self, complete: bool) -> std::io::Result<()> {
        if self.format == Format::Json {
            writeln!(self.output, "],\"count\":{},\"complete\":{complete}}}", self.listed)?;
        }
        self.output.flush()
    }
}

/// Carries out `tontine keys`.
pub(crate) async fn list(shared: CliContext, arguments: KeyListArguments) -> Result<ExitCode, CliError> {
    let unwritten = || CliError::io("cannot write the keys to standard output");
    let client = shared.client().await?;
    let (handle, store) = walkable(&client, &shared.store, arguments.artifact)?;
    let cluster = client.cluster();
    let clock = Ports::os().map_err(CliError::io("cannot start the background thread"))?.clock;
    let options = WalkOptions { patience: arguments.patience, leaves_out_damaged: false };
    let mut listing = Listing::begin(shared.format()).map_err(unwritten())?;
    let (prefix, limit) = (arguments.prefix.as_bytes(), arguments.limit.unwrap_or(u64::MAX));
    let mut complete = true;
    walk_store(&handle, &cluster, &store, options, |step| {
        let What::Records(records) = step.what else { return Ok(ControlFlow::Continue(())) };
        let now = clock.wall();
        for (key, set) in records {
            if !key.starts_with(prefix) || set.live(now).next().is_none() {
                continue;
            }
            if listing.listed == limit {
                complete = false;
                return Ok(ControlFlow::Break(()));
            }
            listing.key(&key).map_err(unwritten())?;
        }
        Ok(ControlFlow::Continue(()))
    })
    .await?;
    let listed = listing.listed;
    listing.end(complete).map_err(unwritten())?;
    if !complete && shared.format() == Format::Text {
        say!("listed {} (--limit {limit}); the store has more", count(listed, "key"));
    }
    Ok(ExitCode::SUCCESS)
}
