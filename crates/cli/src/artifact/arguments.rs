//! What the commands about artifacts are asked to do.

use clap::ValueEnum;
use storage::artifacts::{Compression, Duplicates, Layout, RecordsGiven};

use super::push_arguments::{
    ListArguments, OneArtifact, PushArguments, RollbackArguments, StageArguments, SwapArguments,
};
use crate::input::ReadArguments;

/// What can be done with artifacts.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ArtifactCommand {
    /// Build an artifact from files.
    Build(BuildArguments),
    /// Verify every byte and every record of an artifact. Exits with 1 if it is damaged.
    Check(CheckArguments),
    /// Copy an artifact to a directory, to S3 or to HDFS, or from there.
    Copy(CopyArguments),
    /// Show what an artifact is and what it consists of.
    Show(ShowArguments),
    /// Compare the records of two artifacts. Exits with 1 if they differ.
    Diff(DiffArguments),
    /// Remove files that no manifest names, such as those of a build that was broken off.
    Clean(CleanArguments),
    /// Have all nodes fetch an artifact, and serve it when they hold it.
    Push(PushArguments),
    /// Have all nodes fetch an artifact, without serving it.
    Stage(StageArguments),
    /// Serve an artifact that the nodes hold.
    Swap(SwapArguments),
    /// Serve again the artifact from before the served one.
    Rollback(RollbackArguments),
    /// List the artifacts of read-only stores, and what each node holds of them.
    List(ListArguments),
    /// Forget an artifact that is not served; nodes remove its files.
    Delete(OneArtifact),
    /// Forget an artifact that was never served; nodes stop fetching it and remove its files.
    Abort(OneArtifact),
}

/// Files of records, and where the artifact is to be.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine artifact build counts.tsv --key 1 --value 2 -s words --to /data/words-2
  tontine artifact build part-*.jsonl.gz --key id -s people --to file:///data/people --jobs 4
  tontine artifact build --format voldemort node-*/people/version-7 -s people --to people-7
  tontine artifact build people.csv --key id --value name -s people --to people --compression zstd
  tontine artifact build counts.tsv --key 1 --value 2 -s words --to words-3 --parent words-2
  tontine artifact build counts.tsv --key 1 --value 2 -s words --to s3://tables/words-2

The files are read as `tontine load` reads them. Values have no expiry time.
The same records make the same chunks, in any order and with any number of jobs.
With --parent, INPUT is still all that the artifact is to hold, unless --changes says otherwise. Nodes that serve the
parent fetch only what changed.
With --connect, chunks are cut along the ring of that cluster; otherwise along that of a new one.")]
pub struct BuildArguments {
    /// Files of records, all of one format; `-` reads standard input.
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// How they are read.
    #[command(flatten)]
    pub read: ReadArguments,
    /// Where the artifact is to be: a directory, s3://… or hdfs://…; it must not hold an artifact yet. What goes over the
    /// network is built below the directory for temporary files (TMPDIR) first.
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// The artifact of the day before: a directory, or a URL. Slices, layouts, compression and dictionary are taken over.
    #[arg(long, value_name = "URL", conflicts_with_all = ["compression", "layout"])]
    pub parent: Option<String>,
    /// INPUT is only what changes in --parent: the value of each of its keys. All other records stay.
    #[arg(long, requires = "parent")]
    pub changes: bool,
    /// With --changes, a file whose keys are to be deleted. It is read as INPUT is, and needs no values: a list of keys.
    #[arg(long, value_name = "FILE", requires = "changes")]
    pub deletes: Vec<String>,
    /// Number of the artifact, greater than that of every earlier one of the store; by default the seconds since 1970.
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
    /// How much memory to sort in, 64MiB to 64GiB.
    #[arg(long, default_value = "512MiB", value_parser = parse_memory, value_name = "BYTES")]
    pub memory: usize,
    /// How many threads sort and write, 1 to 64; by default one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "COUNT")]
    pub jobs: Option<u16>,
    /// What to do with several records of one key.
    #[arg(long, value_enum, default_value = "refuse")]
    pub duplicates: DuplicatesArgument,
    /// How to compress values.
    #[arg(long, value_enum, default_value = "none")]
    pub compression: CompressionArgument,
    /// How records lie: in pages, or in slots for large values; by default, as their mean size suggests.
    #[arg(long, value_enum)]
    pub layout: Option<LayoutArgument>,
}

/// An artifact to verify.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArguments {
    /// The artifact: a directory, or a URL (file, http, https, s3, hdfs).
    pub url: String,
    /// How many threads verify, 1 to 64; by default one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "COUNT")]
    pub jobs: Option<u16>,
}

/// An artifact to show.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArguments {
    /// The artifact: a directory, or a URL (file, http, https, s3, hdfs).
    pub url: String,
}

/// An artifact, and where it is to be, too.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine artifact copy words-2 s3://tables/words-2
  tontine artifact copy words-2 hdfs://names:8020/tables/words-2
  tontine artifact copy https://tables.example/words-2 /data/words-2
  tontine artifact copy words-3 s3://tables/words-3 --parent s3://tables/words-2

Each file is verified on its way. The manifest comes last: until then TO holds no artifact.
What is at TO already is not sent again, so a copy that was broken off goes on.
Credentials come from the environment (docs/operating/sources.md).")]
pub struct CopyArguments {
    /// The artifact: a directory, or a URL (file, http, https, s3, hdfs).
    pub from: String,
    /// Where it is to be: a directory, or a URL (file, s3, hdfs). No other artifact may be there.
    pub to: String,
    /// An artifact that shares files with it, such as its parent: a directory, or a URL. What lies on the same file system
    /// or in the same bucket as TO is taken over there, and not sent.
    #[arg(long, value_name = "URL")]
    pub parent: Option<String>,
    /// How many files are under way at a time, 1 to 64.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "COUNT")]
    pub jobs: u16,
}

/// A directory to remove leftovers from.
#[derive(Clone, Debug, clap::Args)]
pub struct CleanArguments {
    /// Directory of the artifact: a path or file:///….
    pub url: String,
    /// Clean a directory without a manifest: nothing of the broken build is kept. No build must be writing to it.
    #[arg(long)]
    pub unfinished: bool,
    /// Show what would be removed, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Two artifacts to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct DiffArguments {
    /// The earlier artifact: a directory or a URL.
    #[arg(value_name = "A")]
    pub before: String,
    /// The later artifact: a directory or a URL.
    #[arg(value_name = "B")]
    pub after: String,
}

/// What to do with several records of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DuplicatesArgument {
    /// Stop, and name both places.
    Refuse,
    /// Take the last one, in the order of files and lines.
    Last,
}

/// How to compress values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionArgument {
    /// Not at all.
    None,
    /// Quick to read.
    Lz4,
    /// Small, with one dictionary for the artifact.
    Zstd,
}

/// How records lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutArgument {
    /// In pages of 4 KiB, for small values.
    Pages,
    /// One after the other, with an index of about 7 bytes a key in memory.
    Slots,
}

impl From<DuplicatesArgument> for Duplicates {
    fn from(argument: DuplicatesArgument) -> Duplicates {
        match argument {
            DuplicatesArgument::Refuse => Duplicates::Refuse,
            DuplicatesArgument::Last => Duplicates::Last,
        }
    }
}

impl From<CompressionArgument> for Compression {
    fn from(argument: CompressionArgument) -> Compression {
        match argument {
            CompressionArgument::None => Compression::None,
            CompressionArgument::Lz4 => Compression::Lz4,
            CompressionArgument::Zstd => Compression::Zstd,
        }
    }
}

impl From<LayoutArgument> for Layout {
    fn from(argument: LayoutArgument) -> Layout {
        match argument {
            LayoutArgument::Pages => Layout::Pages,
            LayoutArgument::Slots => Layout::Slots,
        }
    }
}

impl BuildArguments {
    /// All files that are read, in the order of their places.
    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        self.inputs.iter().chain(&self.deletes)
    }

    /// What the records are.
    pub(super) fn given(&self) -> RecordsGiven {
        if self.changes { RecordsGiven::Changes } else { RecordsGiven::All }
    }
}

/// Threads, unless the command says how many.
pub(super) fn jobs(given: Option<u16>) -> usize {
    given.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from).min(64), usize::from)
}

fn parse_memory(text: &str) -> Result<usize, String> {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let (number, unit) = units
        .into_iter()
        .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|number| (number, unit)))
        .ok_or("use a number with KiB, MiB or GiB, such as 512MiB")?;
    let number: u64 = number.trim().parse().map_err(|_| format!("{number:?} is not a whole number"))?;
    let bytes = number.saturating_mul(unit);
    match (64 << 20..=64 << 30).contains(&bytes) {
        true => Ok(bytes as usize),
        false => Err("use 64MiB to 64GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_unit_and_bounds() {
        assert_eq!(parse_memory("512MiB"), Ok(512 << 20));
        assert_eq!(parse_memory("2GiB"), Ok(2 << 30));
        for wrong in ["512", "1MiB", "65GiB", "xMiB", "99999999999999999999GiB", "-1GiB"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }
}
