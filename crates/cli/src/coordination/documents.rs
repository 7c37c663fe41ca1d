//! `tontine coordination`: the documents as they are, and out of the service.
//!
//! Must never: change a document that is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use ::coordination::{CoordinationError, CoordinationService, Document, DocumentPath};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::CoordinationArguments;
use super::migrate::MigrateArguments;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{bytes_json, count, shown};

/// Looks at the documents of the coordination service, or moves them.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum CoordinationCommand {
    /// Show the documents: their paths, versions, sizes and owners; of one document also its content.
    Show(ShowArguments),
    /// Print a line for each document, and for each that is created, changed or deleted from then on, until Ctrl-C.
    Watch(WatchArguments),
    /// Write all documents but the ephemeral ones to a new file, one JSON document on each line.
    Export(FileArguments),
    /// Bring the documents of an exported file back into a service that has lost them, while the nodes run or not.
    Import(FileArguments),
    /// Move all documents to another service, while the nodes run or not.
    Migrate(MigrateArguments),
}

/// What to show.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArguments {
    /// The document to begin with.
    #[arg(default_value = "/", value_name = "PATH")]
    pub path: DocumentPath,
    /// Which service.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// What to watch.
#[derive(Clone, Debug, clap::Args)]
pub struct WatchArguments {
    /// Which service.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// From where to where.
#[derive(Clone, Debug, clap::Args)]
pub struct FileArguments {
    /// The file; `-` is standard output or standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Which service.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// One line of an exported file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExportLine {
    pub(super) path: String,
    pub(super) data: Json,
}

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: CoordinationCommand) -> Result<ExitCode, CliError> {
    match command {
        CoordinationCommand::Show(arguments) => show(&shared, arguments).await,
        CoordinationCommand::Watch(arguments) => watch(&shared, arguments).await,
        CoordinationCommand::Export(arguments) => export(arguments).await,
        CoordinationCommand::Import(arguments) => super::import::run(arguments).await,
        CoordinationCommand::Migrate(arguments) => super::migrate::run(&shared, arguments).await,
    }
}

/// A document and all below it, parents first. One that goes meanwhile is left out.
async fn read_all(
    service: &dyn CoordinationService,
    from: &DocumentPath,
) -> Result<Vec<(DocumentPath, Document)>, CoordinationError> {
    let mut found = Vec::new();
    let mut waiting = vec![from.clone()];
    while let Some(path) = waiting.pop() {
        let read = async { Ok((service.get(&path).await?, service.children(&path).await?)) };
        match read.await {
            Ok((document, names)) => {
                // What a service holds, its rules allow.
                let below = names.iter().rev().filter_map(|name| path.child(name).ok());
                waiting.extend(below);
                found.push((path, document));
            }
            Err(CoordinationError::NoNode { .. }) if path != *from => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn document_json(path: &DocumentPath, document: &Document) -> Json {
    json!({
        "path": path.as_str(),
        "version": document.stat.version.0,
        "created": document.stat.created.0,
        "owner": document.stat.owner.map(|owner| format!("{:x}", owner.0)),
        "data": bytes_json(&document.data),
    })
}

fn line(path: &DocumentPath, document: &Document) -> String {
    let owner = document.stat.owner.map_or_else(String::new, |owner| format!(", of {owner}"));
    let bytes = count(document.data.len() as u64, "byte");
    format!("{path}  version {}, {bytes}{owner}", document.stat.version.0)
}

async fn show(shared: &CliContext, arguments: ShowArguments) -> Result<ExitCode, CliError> {
    let service = arguments.service.existing().await?;
    let found = read_all(&*service, &arguments.path).await?;
    let document = json!({
        "documents": found.iter().map(|(path, document)| document_json(path, document)).collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || {
        let mut text: Vec<String> = found.iter().map(|(path, document)| line(path, document)).collect();
        if let [(_, only)] = &found[..] {
            text.push(serde_json::from_slice::<Json>(&only.data).map_or_else(
                |_| shown(&only.data),
                |content| serde_json::to_string_pretty(&content).expect("it was read from text"),
            ));
        }
        text.join("\n")
    });
    let _ = service.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn watch(shared: &CliContext, arguments: WatchArguments) -> Result<ExitCode, CliError> {
    let mut service = arguments.service.existing().await?;
    let mut known: Option<BTreeMap<DocumentPath, Document>> = None;
    loop {
        match changed(&*service, &mut known, shared).await {
            Ok(()) => crate::output::check()?,
            Err(CoordinationError::SessionLost) => match service.reopen().await {
                Ok(opened) => service = opened,
                Err(error) => {
                    say!("{error}");
                    tokio::time::sleep(super::PATIENCE).await;
                }
            },
            // The first look says whether there is such a service at all.
            Err(error @ CoordinationError::Unavailable { .. }) if known.is_some() => {
                say!("{error}");
                tokio::time::sleep(super::PATIENCE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints what differs from what is known, and waits until something may.
async fn changed(
    service: &dyn CoordinationService,
    known: &mut Option<BTreeMap<DocumentPath, Document>>,
    shared: &CliContext,
) -> Result<(), CoordinationError> {
    let mut watches = FuturesUnordered::new();
    let mut now = BTreeMap::new();
    let mut waiting = vec![DocumentPath::root()];
    while let Some(path) = waiting.pop() {
        let (found, document_watch) = service.get_and_watch(&path).await?;
        watches.push(document_watch.fired());
        let Some(document) = found else { continue };
        match service.children_and_watch(&path).await {
            Ok((names, list_watch)) => {
                watches.push(list_watch.fired());
                waiting.extend(names.iter().filter_map(|name| path.child(name).ok()));
            }
            Err(CoordinationError::NoNode { .. }) => continue,
            Err(error) => return Err(error),
        }
        now.insert(path, document);
    }
    for (path, document) in &now {
        match known.as_ref().map(|before| before.get(path)) {
            None => tell(shared, "present", path, document),
            Some(Some(old)) if old.stat == document.stat => {}
            Some(Some(old)) if old.stat.created == document.stat.created => {
                tell(shared, "changed", path, document);
            }
            Some(_) => tell(shared, "created", path, document),
        }
    }
    for (path, document) in known.iter().flatten().filter(|(path, _)| !now.contains_key(path)) {
        tell(shared, "deleted", path, document);
    }
    *known = Some(now);
    watches.next().await.expect("the root is watched").map(drop)
}

fn tell(shared: &CliContext, what: &str, path: &DocumentPath, document: &Document) {
    let mut json = document_json(path, document);
    json["event"] = json!(what);
    print(shared.format(), &json, || format!("{what} {}", line(path, document)));
}

async fn export(arguments: FileArguments) -> Result<ExitCode, CliError> {
    let service = arguments.service.existing().await?;
    let found = read_all(&*service, &DocumentPath::root()).await?;
    let failed = || CliError::io(format!("cannot write {}", arguments.file.display()));
    let mut file: Box<dyn Write> = match arguments.file.as_os_str() == "-" {
        true => Box::new(crate::output::Stdout),
        false => Box::new(File::create_new(&arguments.file).map_err(failed())?),
    };
    let mut written = 0;
    for (path, document) in found.iter().filter(|(_, document)| document.stat.owner.is_none()) {
        let line = ExportLine { path: path.as_str().to_owned(), data: bytes_json(&document.data) };
        serde_json::to_writer(&mut file, &line).map_err(|error| failed()(error.into()))?;
        file.write_all(b"\n").map_err(failed())?;
        written += 1;
    }
    file.flush().map_err(failed())?;
    say!("wrote {}; ephemeral documents are left out", count(written, "document"));
    let _ = service.close().await;
    Ok(ExitCode::SUCCESS)
}
