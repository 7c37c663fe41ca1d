//! `tontine load`: writes the records of a file, many at once, and can go on where it was stopped.
//!
//! ```text
//!  file → reader (a thread) → batches → pipeline → StoreHandle::multi_put, several in flight
//!                                          │
//!                                          └→ window: what is acknowledged without a gap → checkpoint
//! ```
//!
//! Puts here may be repeated at will, because the same key gets the same value again; so whatever fails or has an
//! unknown outcome is simply sent again, for as long as the user has patience.
//!
//! **Architecture Invariant:** no record is left out silently: it is acknowledged, or listed as bad, or the load
//! fails and says from where it must go on.

mod arguments;
mod batch;
mod checkpoint;
mod pace;
mod pipeline;
mod report;
mod window;

use std::process::ExitCode;

use runtime::Ports;

use crate::context::{CliContext, writable};
use crate::failure::CliError;
use crate::input::{self, Expires, Position, ReadSettings, Source, expires_of_export};
use crate::output::print;
use crate::progress::Progress;
pub(crate) use arguments::LoadArguments;
use batch::BatchLimits;
use checkpoint::Checkpoint;
use pace::Pace;
use pipeline::Pipeline;

/// Carries out the load.
pub(crate) async fn run(shared: CliContext, arguments: LoadArguments) -> Result<ExitCode, CliError> {
    if arguments.file != "-" {
        // A name that was mistyped has no format either, but that is not what is wrong with it.
        let found = std::fs::metadata(&arguments.file)
            .map_err(CliError::io(format!("cannot read {}", arguments.file)))?;
        if found.is_dir() {
            return Err(CliError::Usage(format!(
                "{} is a directory; name one file, and load several one after another",
                arguments.file
            )));
        }
    }
    if arguments.file == "-" && (arguments.resume || arguments.checkpoint.is_some()) {
        return Err(CliError::Usage(
            "a load of standard input cannot be resumed, because it cannot be read twice; load a file instead"
                .to_owned(),
        ));
    }
    let expires = match &arguments.expires {
        _ if arguments.no_expires => Expires::Never,
        Some(column) => Expires::There(column.clone()),
        None => expires_of_export(&arguments.read),
    };
    let settings = ReadSettings::new(&arguments.file, &arguments.read, expires)?;
    let client = shared.client().await?;
    let store = client.store(&shared.store)?;
    let cluster = client.cluster();
    let definition = writable(&cluster, &shared.store)?;
    let source = Source::new(&arguments.file);
    let description = settings.describe(&cluster.name, &shared.store);
    let checkpoint = Checkpoint::prepare(&source, &arguments, description)?;
    let start = match &checkpoint {
        Some(checkpoint) if arguments.resume => checkpoint.start(),
        _ => Position::default(),
    };
    let reader = input::open(&source, &settings, start, (definition.value_bytes_max, &definition.placement))?;
    // A file that cannot even be opened leaves nothing beside it.
    checkpoint.as_ref().map_or(Ok(()), Checkpoint::begin)?;
    let clock = Ports::os().map_err(CliError::io("cannot start the background thread"))?.clock;
    let limits = BatchLimits {
        keys_max: pace::batch_keys(arguments.batch, arguments.rate),
        skip_bad: arguments.skip_bad,
        resumed: start != Position::default(),
    };
    let batches =
        batch::read_in_background(reader, limits, clock).map_err(CliError::io("cannot start the reader"))?;
    let mut pipeline = Pipeline {
        store,
        batches,
        parallel: usize::from(arguments.parallel),
        pace: Pace::new(arguments.rate, tokio::time::Instant::now()),
        patience: arguments.patience,
        checkpoint,
        progress: Progress::new(source.size(), start.byte),
    };
    let report = pipeline.drive(start).await;
    print(shared.format(), &report.json(), || report.text());
    match report.failure {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure.into()),
    }
}
