//! `tontine coordination import`: an export comes back, also beside nodes that run already and register meanwhile.
//!
//! Must never: change a document that is not a version of the exported one, or make nodes follow a cluster document before
//! all others are there.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;

use ::coordination::address::Address;
use ::coordination::documents::{self, Restored, restored, restored_last};
use ::coordination::{CoordinationError, CoordinationService, CreateMode, DocumentPath, Expected};
use bytes::Bytes;
use model::unquoted;

use super::documents::{ExportLine, FileArguments};
use crate::failure::CliError;
use crate::text::count;

/// Why a document was not brought back.
enum ImportRefusal {
    Service(CoordinationError),
    /// Something else is there.
    Strange,
}

impl From<CoordinationError> for ImportRefusal {
    fn from(error: CoordinationError) -> ImportRefusal {
        ImportRefusal::Service(error)
    }
}

/// Carries out the command.
pub(super) async fn run(arguments: FileArguments) -> Result<ExitCode, CliError> {
    // Before anything is made.
    let mut found = read_file(&arguments)?;
    found.retain(|(path, _)| !path.is_root());
    found.sort_by_key(|(path, _)| restored_last(path));
    let place = arguments.service.place()?;
    let service = super::open(&place, true).await?;
    refuse_strangers(&*service, &place.address, &found).await?;
    let mut written = 0;
    for (path, data) in &found {
        match restore(&*service, path, data).await {
            Ok(false) => {}
            Ok(true) => written += 1,
            Err(ImportRefusal::Strange) => return Err(strange(&place.address, path)),
            Err(ImportRefusal::Service(error)) => {
                say!(
                    "wrote {} before the failure; run the same command again to go on",
                    count(written, "document")
                );
                return Err(error.into());
            }
        }
    }
    match found.len() as u64 - written {
        0 => say!("created {} in {}", count(written, "document"), place.address),
        there => {
            say!("wrote {} in {}; {there} were there already", count(written, "document"), place.address);
        }
    }
    let _ = service.close().await;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a place that is somebody else's, before anything is written.
async fn refuse_strangers(
    service: &dyn CoordinationService,
    address: &Address,
    found: &[(DocumentPath, Bytes)],
) -> Result<(), CliError> {
    for name in service.children(&DocumentPath::root()).await? {
        let is_exported = |(path, _): &(DocumentPath, Bytes)| path.as_str().split('/').nth(1) == Some(&*name);
        if !found.iter().any(is_exported) && !documents::is_own(&name) {
            return Err(CliError::Other(format!(
                "{address} is not empty: it holds /{name}; import into a new directory or chroot"
            )));
        }
    }
    for (path, data) in found {
        match service.get(path).await {
            Ok(there) if restored(path, &there.data, data) == Restored::Strange => {
                return Err(strange(address, path));
            }
            Ok(_) | Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn strange(address: &Address, path: &DocumentPath) -> CliError {
    CliError::Other(format!(
        "{address} is not empty: it holds another {path} than the file; import into a new directory or chroot"
    ))
}

/// Brings a document back. Says whether it wrote.
async fn restore(
    service: &dyn CoordinationService,
    path: &DocumentPath,
    data: &Bytes,
) -> Result<bool, ImportRefusal> {
    documents::create_parents(service, path).await?;
    loop {
        match service.create(path, data.clone(), CreateMode::Persistent).await {
            Ok(_) => return Ok(true),
            Err(CoordinationError::NodeExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let there = match service.get(path).await {
            Ok(there) => there,
            // It has just vanished.
            Err(CoordinationError::NoNode { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let becomes = match restored(path, &there.data, data) {
            Restored::Stays => return Ok(false),
            Restored::Becomes(becomes) => becomes,
            Restored::Strange => return Err(ImportRefusal::Strange),
        };
        match service.set(path, becomes, Expected::Version(there.stat.version)).await {
            Ok(_) => return Ok(true),
            // A node was faster: look at what it wrote.
            Err(CoordinationError::BadVersion { .. } | CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The documents of an exported file.
fn read_file(arguments: &FileArguments) -> Result<Vec<(DocumentPath, Bytes)>, CliError> {
    let name = arguments.file.display();
    let file: Box<dyn Read> = match arguments.file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(&arguments.file).map_err(CliError::io(format!("cannot read {name}")))?),
    };
    let mut documents = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(CliError::io(format!("cannot read {name}")))?;
        let wrong = |reason: String| CliError::Other(format!("{name}, line {number}: {reason}"));
        let line: ExportLine = serde_json::from_str(&line).map_err(|error| wrong(unquoted::json(&error)))?;
        let path = DocumentPath::new(&line.path).map_err(|error| wrong(error.to_string()))?;
        let data = match (line.data.as_str(), line.data["hex"].as_str().and_then(unhex)) {
            (Some(text), _) => Bytes::from(text.to_owned()),
            (None, Some(bytes)) => Bytes::from(bytes),
            (None, None) => return Err(wrong("the data is neither text nor {\"hex\": \"...\"}".to_owned())),
        };
        documents.push((path, data));
    }
    Ok(documents)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
