//! The files of an identity: lines of text with a checksum behind them.
//!
//! Must never: read a file whose checksum does not fit, or leave half of one in the place of another.

use std::cmp::Ordering;

use model::NodeId;
use runtime::{Disk, DiskError};

use super::{FORMAT, IdentityError, Remembered};

/// Longest file that is read: what names a hundred thousand engines.
const BYTES_MAX: u64 = 16 << 20;

/// Locks a data directory.
pub(super) fn lock(disk: &dyn Disk) -> Result<Box<dyn Send + Sync>, IdentityError> {
    disk.lock("lock").map_err(|error| match error {
        DiskError::Locked { .. } => IdentityError::InUse,
        other => IdentityError::Disk(other),
    })
}

/// Puts a text with its checksum in the place of a file, durably.
pub(super) async fn replace(disk: &dyn Disk, file: &str, mut text: String) -> Result<(), DiskError> {
    text.push_str(&format!("checksum {:016x}\n", model::Token::of(text.as_bytes()).0));
    let temporary = format!("{file}.new");
    match disk.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let written = disk.create(&temporary)?;
    written.append(text.as_bytes())?;
    written.sync().await?;
    disk.rename(&temporary, file)?;
    disk.sync_directory("").await
}

/// The lines of a text before its checksum, if that is right.
pub(super) fn checked(text: &str) -> Result<&str, IdentityError> {
    let body_end = text.rfind("checksum ").ok_or_else(|| damaged("its checksum is missing"))?;
    let checksum = format!("{:016x}", model::Token::of(&text.as_bytes()[..body_end]).0);
    if text[body_end..].trim_end() != format!("checksum {checksum}") {
        return Err(damaged("its checksum does not match"));
    }
    Ok(&text[..body_end])
}

pub(super) fn read(disk: &dyn Disk, path: &str) -> Result<Option<Remembered>, IdentityError> {
    text(disk, path)?.map(|text| parse(&text)).transpose()
}

/// A number that a file says under this name.
pub(super) fn number(disk: &dyn Disk, path: &str, name: &str) -> Result<Option<u64>, IdentityError> {
    let Some(text) = text(disk, path)? else { return Ok(None) };
    let mut lines = checked(&text)?.lines();
    Ok(lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()))
}

fn text(disk: &dyn Disk, path: &str) -> Result<Option<String>, IdentityError> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let length = file.length();
    if length > BYTES_MAX {
        return Err(damaged(&format!("it has {length} bytes, over the limit of {BYTES_MAX}")));
    }
    let mut bytes = vec![0; length as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    String::from_utf8(bytes).map(Some).map_err(|_| damaged("it is not text"))
}

fn parse(text: &str) -> Result<Remembered, IdentityError> {
    let first = text.lines().next().unwrap_or_default();
    let format = first
        .strip_prefix("tontine-identity ")
        .and_then(|format| format.parse::<u32>().ok())
        .ok_or_else(|| damaged("its first line is not that of an identity file"))?;
    match format.cmp(&FORMAT) {
        Ordering::Greater => return Err(IdentityError::Newer { found: format }),
        Ordering::Less => return Err(IdentityError::Earlier { found: format }),
        Ordering::Equal => {}
    }
    let body = checked(text)?;
    let field = |name: &str| {
        body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned)
    };
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    Ok(Remembered {
        cluster: field("cluster").ok_or_else(|| damaged("it names no cluster"))?,
        node: number("node")
            .and_then(|id| u32::try_from(id).ok())
            .map(NodeId)
            .ok_or_else(|| damaged("it names no node"))?,
        incarnation: number("incarnation").ok_or_else(|| damaged("it names no incarnation"))?,
        password_required: field("password").is_some(),
        holds: body.lines().filter_map(held).collect(),
        stopped: number("births").zip(number("stop")),
    })
}

fn held(line: &str) -> Option<(String, u64)> {
    let (number, name) = line.strip_prefix("holds ")?.split_once(' ')?;
    Some((name.to_owned(), u64::from_str_radix(number, 16).ok()?))
}

pub(super) fn damaged(reason: &str) -> IdentityError {
    IdentityError::Damaged { reason: reason.to_owned() }
}
