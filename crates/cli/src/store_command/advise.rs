//! `tontine store advise`: between which bounds θ of a store lies, by what its nodes measured.
//!
//! It asks all nodes twice. How large reads are was counted since the nodes started; what a put costs is of the time between
//! the looks. A figure that nobody has is said to be missing, with the command that helps.

use std::process::ExitCode;
use std::time::Duration;

use client::Client;
use model::{Cluster, NodeId, Placement, Store, StoreName};
use protocol::report::{Parts, Report, StoreDemand};
use serde_json::{Value as Json, json};

use super::theta::{self, Bounds, MARGIN, READ_KEYS_MAX, Reads, Serves, Verdict, asked};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::{Format, count, table};

/// Which store, and which delay is accepted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Theta lies between two bounds:
  lower  the keys of a typical read: smaller windows make it ask more nodes
  upper  what one node serves within the delay that you accept: a window's node gets all puts while it is open.
         It counts where puts reach half of what one node serves; below that a node keeps up with them
A theta that misses a bound by less than a factor of 1.5 is good enough. Requests for more than 500 keys do not count.
Run it while clients read and write. Theta of a store is settled when it is created.

Example: puts may wait for 20 ms
  tontine store advise feeds --delay-ms 20")]
pub struct AdviseStoreArguments {
    /// Its name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How long a put may wait for its window's node, in milliseconds, 1 to 60000.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000), value_name = "MS")]
    pub delay_ms: u64,
    /// Time between the two looks, 1 to 600.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600), value_name = "COUNT")]
    pub seconds: u64,
}

/// What a node said, or why it said nothing.
type Look = (NodeId, Result<Report, String>);

/// `tontine store advise`.
pub(super) async fn run(shared: &CliContext, arguments: &AdviseStoreArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.cluster();
    let store = store(&cluster, &arguments.name)?;
    if shared.format() == Format::Text {
        say!("asking all nodes twice, {} s apart", arguments.seconds);
    }
    let before = look(&client, &cluster).await;
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let after = look(&client, &cluster).await;
    let advice = Advice::of(&cluster, store, &before, &after, arguments.delay_ms);
    print(shared.format(), &advice.json(), || advice.text());
    Ok(match advice.verdict {
        Verdict::Fits | Verdict::Near | Verdict::Pays(_) | Verdict::PaysLittle(_) => ExitCode::SUCCESS,
        Verdict::Unknown | Verdict::NoneFits | Verdict::TooSmall(_) | Verdict::TooLarge(_) => {
            ExitCode::from(1)
        }
    })
}

/// The store of this name, if it takes writes.
fn store<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Store, CliError> {
    if let Some(store) = cluster.store(name) {
        return Ok(store);
    }
    let is_read_only = cluster.read_only.iter().any(|store| store.name.as_str() == name);
    Err(CliError::Usage(match is_read_only {
        true => {
            format!("store {name} is read-only: artifacts lie by the hash of their keys, and have no windows")
        }
        false => {
            format!("there is no store {name}; `{} store list` shows those that there are", program())
        }
    }))
}

/// Asks all nodes at once.
async fn look(client: &Client, cluster: &Cluster) -> Vec<Look> {
    let asks = cluster.nodes.iter().map(|node| async move {
        let answer = client.report(node.id, Parts::LOAD | Parts::STATUS).await;
        (node.id, answer.map_err(|error| error.to_string()))
    });
    futures_util::future::join_all(asks).await
}

/// All that is known, and what follows.
struct Advice<'a> {
    store: &'a Store,
    nodes: usize,
    delay_ms: u64,
    reads: Option<Reads>,
    /// What the weakest node serves.
    serves: Option<Serves>,
    /// Writes of the store in a second, at all nodes.
    puts_per_second: f64,
    silent: Vec<(NodeId, String)>,
    verdict: Verdict,
}

impl<'a> Advice<'a> {
    fn of(cluster: &Cluster, store: &'a Store, before: &[Look], after: &[Look], delay_ms: u64) -> Advice<'a> {
        let mut advice = Advice {
            store,
            nodes: theta::holders(cluster),
            delay_ms,
            reads: None,
            serves: None,
            puts_per_second: 0.0,
            silent: Vec::new(),
            verdict: Verdict::Unknown,
        };
        let mut all: Vec<&StoreDemand> = Vec::new();
        for (node, answer) in after {
            let first = before.iter().find(|(one, _)| one == node);
            match comparable(first.map(|(_, answer)| answer), answer, &store.name) {
                Ok(looks) => {
                    all.push(looks.demand_after);
                    advice.puts_per_second += looks.puts_per_second();
                    let serves = Serves::of(*node, looks.load_before, looks.load_after);
                    let weakest = [advice.serves, serves].into_iter().flatten();
                    advice.serves = weakest.min_by(|a, b| a.puts_per_second.total_cmp(&b.puts_per_second));
                }
                Err(why) => advice.silent.push((*node, why)),
            }
        }
        advice.reads = Reads::of(store, advice.nodes, &all);
        advice.verdict = Verdict::of(store, advice.nodes, advice.bounds());
        advice
    }

    fn lower(&self) -> Option<u64> {
        self.reads.map(|reads| reads.median)
    }

    fn upper(&self) -> Option<u64> {
        self.serves.map(|serves| serves.theta(self.delay_ms))
    }

    /// Whether puts come near what one node serves; `None` where nobody knows that.
    fn binds(&self) -> Option<bool> {
        self.serves.map(|serves| serves.is_neared_by(self.puts_per_second))
    }

    /// The numbers that are shown, if both are known.
    fn bounds(&self) -> Option<Bounds> {
        let is_cut = self.reads?.is_cut;
        Some(Bounds { lower: self.lower()?, is_cut, upper: self.upper()?, binds: self.binds()? })
    }

    fn windows(&self) -> Option<u64> {
        self.store.placement.windows().map(|windows| windows.theta)
    }

    fn json(&self) -> Json {
        let reads = self.reads.map(|reads| {
            json!({ "count": reads.count.round() as u64, "guessed": reads.guessed.round() as u64,
                "keys_median": reads.median, "keys_most": reads.most, "cut_by_windows": reads.is_cut,
                "wide_left_out": reads.wide.round() as u64 })
        });
        let serves = self.serves.map(|serves| {
            json!({ "node": serves.node, "puts_per_second": serves.puts_per_second.round() as u64,
                "put_us": serves.put_us, "processors": serves.processors })
        });
        let silent = self.silent.iter().map(|(node, why)| json!({ "node": node, "error": why }));
        json!({
            "store": self.store.name, "theta": self.windows(), "delay_ms": self.delay_ms,
            "lower": self.lower(), "upper": self.upper(), "upper_binds": self.binds(), "advice": self.verdict.name(),
            "advised_theta": self.verdict.theta(), "reads_counted": reads, "capacity": serves,
            "puts_per_second": self.puts_per_second, "silent": silent.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let lie = match &self.store.placement {
            Placement::Hash => "keys lie by their hash".to_owned(),
            Placement::Windows(windows) => format!("keys {} in windows of {}", windows.key, windows.theta),
        };
        let rows = [
            ["BOUND", "THETA", "FROM"].map(str::to_owned).to_vec(),
            vec!["lower".to_owned(), shown(self.lower()), self.why_lower()],
            vec!["upper".to_owned(), shown(self.upper()), self.why_upper()],
        ];
        let mut text = format!(
            "store {}: {lie}, R={}, {}\n\n{}\n{}\n",
            self.store.name,
            self.store.consistency.reads_required,
            count(self.nodes as u64, "node"),
            table(&rows),
            self.advice()
        );
        if let Some(serves) = self.serves {
            text.push_str(&self.puts(serves));
        }
        for (node, why) in &self.silent {
            text.push_str(&format!("{node} is not counted: {why}\n"));
        }
        text
    }

    /// What the upper bound means by the puts of now.
    fn puts(&self, serves: Serves) -> String {
        let binds = serves.is_neared_by(self.puts_per_second);
        let figures = format!(
            "the store has {:.0} puts/s, and one node serves {:.0}",
            self.puts_per_second, serves.puts_per_second
        );
        let mut text = match binds {
            true => format!("The upper bound counts: {figures}."),
            false => {
                format!("The upper bound does not count yet: {figures}, so it keeps up with all of them.")
            }
        };
        if let Some(theta) = self.windows().or(self.verdict.theta()) {
            let when = if binds { "While a window is open" } else { "Once they outgrow one node" };
            text.push_str(&format!(
                " {when}, a put may wait {:.1} ms at theta {theta}.",
                serves.delay_ms(theta)
            ));
        }
        text.push('\n');
        text
    }

    /// What the lower bound is by, or what helps to know it.
    fn why_lower(&self) -> String {
        let Some(reads) = self.reads else {
            return format!(
                "too few reads of 2 to {READ_KEYS_MAX} keys were counted since the nodes started"
            );
        };
        let how = match (reads.guessed > 0.0, reads.guessed < reads.count) {
            (false, _) => "",
            (true, true) => ", in part guessed from messages of clients that drive reads themselves",
            (true, false) => ", guessed from messages of clients that drive reads themselves",
        };
        let least = if reads.is_cut { " or more: windows cut them" } else { "" };
        let wide = match reads.wide.round() as u64 {
            0 => String::new(),
            wide => format!("; {} for more than {READ_KEYS_MAX} keys left out", count(wide, "request")),
        };
        format!(
            "half of {:.0} reads of several keys ask for at most {}{least}, nine in ten for at most {}{how}{wide}",
            reads.count, reads.median, reads.most
        )
    }

    /// What the upper bound is by, or what helps to know it.
    fn why_upper(&self) -> String {
        let Some(serves) = self.serves else {
            return "too little was served between the looks to tell what a put costs".to_owned();
        };
        format!(
            "{}, the weakest node, serves {:.0} puts/s beside its reads ({:.0} µs each, {:.2} processors), and a put may wait {} ms",
            serves.node, serves.puts_per_second, serves.put_us, serves.processors, self.delay_ms
        )
    }

    /// What to do.
    fn advice(&self) -> String {
        let (name, program) = (&self.store.name, program());
        let create = |theta: u64| {
            format!("{program} store create NAME --placement windows --theta {theta} --key PATTERN")
        };
        match self.verdict {
            Verdict::Unknown => format!(
                "Nobody can tell yet. Let clients read several keys at once and write, and run `{program} store advise {name} \
                 --seconds 30` meanwhile; `{program} balance status` shows what nodes do."
            ),
            Verdict::NoneFits => format!(
                "The bounds cross, so no theta fits: windows as large as a read delay puts by more than {} ms. Accept a longer \
                 delay with --delay-ms, read fewer keys at once, or keep keys by their hash.",
                self.delay_ms
            ),
            Verdict::Fits => {
                let (own, upper) = (self.windows().unwrap_or_default(), self.upper().unwrap_or_default());
                let lies = if own <= upper { "lies between them" } else { "is no smaller than reads" };
                format!("{own} {lies}: keep it. {}", self.nodes_asked(own))
            }
            Verdict::Near => {
                let own = self.windows().unwrap_or_default();
                format!("{own} {}. {}", self.why_near(own), self.nodes_asked(own))
            }
            Verdict::TooSmall(theta) | Verdict::TooLarge(theta) => format!(
                "{} misses {}. Theta of a store is settled: create another one with `{}`, and copy the keys with `{program} \
                 export` and `{program} load`. {}",
                self.windows().unwrap_or_default(),
                self.why_missed(),
                create(theta),
                self.nodes_asked(theta)
            ),
            Verdict::Pays(theta) => format!(
                "Windows would pay, if keys end in a sequence number and reads follow it, which only you know. {} Create such a \
                 store with `{}`.",
                self.nodes_asked(theta),
                create(theta)
            ),
            Verdict::PaysLittle(theta) => {
                format!("Windows would pay little: keep keys by their hash. {}", self.nodes_asked(theta))
            }
        }
    }

    /// Why a θ that misses a bound is good enough.
    fn why_near(&self, theta: u64) -> String {
        let keep = format!(
            "good enough: keep it. Another one is worth a new store where it misses a bound {MARGIN} times"
        );
        if self.reads.is_some_and(|reads| reads.is_cut) {
            let much = theta as f64 * MARGIN;
            return format!(
                "is full in many reads, so they may be larger; unless clients read more than {much:.0} keys at once, it is {keep}"
            );
        }
        let which = if self.lower().is_some_and(|lower| theta < lower) { "lower" } else { "upper" };
        format!("is near the {which} bound, and {keep}")
    }

    /// Which bound θ misses clearly.
    fn why_missed(&self) -> String {
        match self.verdict {
            Verdict::TooLarge(_) => format!("the upper bound more than {MARGIN} times"),
            _ if self.reads.is_some_and(|reads| reads.is_cut) => {
                "the lower bound: reads fill whole windows, and a larger theta costs nothing up to the upper bound".to_owned()
            }
            _ => format!("the lower bound more than {MARGIN} times"),
        }
    }

    /// How many nodes a typical read asks.
    fn nodes_asked(&self, theta: u64) -> String {
        if self.reads.is_some_and(|reads| reads.is_cut) {
            return "How large reads are is not known, since windows cut them.".to_owned();
        }
        let keys = self.lower().unwrap_or(1);
        let by = |theta| asked(self.store, self.nodes, keys, theta);
        format!(
            "A read of {} asks {:.1} of {} in windows of {theta}, and {:.1} by hash.",
            count(keys, "key"),
            by(theta),
            count(self.nodes as u64, "node"),
            by(1)
        )
    }
}

/// Two looks at one node.
struct Looks<'a> {
    load_before: &'a protocol::report::LoadReport,
    load_after: &'a protocol::report::LoadReport,
    demand_before: &'a StoreDemand,
    demand_after: &'a StoreDemand,
}

impl Looks<'_> {
    fn puts_per_second(&self) -> f64 {
        let ms = self.load_after.uptime_ms.saturating_sub(self.load_before.uptime_ms).max(1);
        let puts = self.demand_after.stamped_total.saturating_sub(self.demand_before.stamped_total);
        puts as f64 * 1000.0 / ms as f64
    }
}

/// Both looks, if they are of one process that tells what is needed.
fn comparable<'a>(
    before: Option<&'a Result<Report, String>>,
    after: &'a Result<Report, String>,
    store: &StoreName,
) -> Result<Looks<'a>, String> {
    let after = after.as_ref().map_err(Clone::clone)?;
    let before =
        before.ok_or("it joined between the two looks; ask again")?.as_ref().map_err(Clone::clone)?;
    let demand = |report: &'a Report| {
        let stores = report.status.iter().flat_map(|status| &status.stores);
        let found = stores.into_iter().find(|status| status.store == *store).map(|status| &status.demand);
        match found {
            None => Err("it has not opened the store yet; ask again".to_owned()),
            Some(None) => Err("its program is of an older version, which does not count reads".to_owned()),
            Some(Some(demand)) => Ok(demand),
        }
    };
    let load = |report: &'a Report| report.load.as_ref().ok_or("it does not report its load".to_owned());
    if before.incarnation != after.incarnation {
        return Err("it began anew between the two looks; ask again".to_owned());
    }
    Ok(Looks {
        load_before: load(before)?,
        load_after: load(after)?,
        demand_before: demand(before)?,
        demand_after: demand(after)?,
    })
}

fn shown(theta: Option<u64>) -> String {
    theta.map_or("unknown".to_owned(), |theta| theta.to_string())
}
