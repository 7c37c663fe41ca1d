//! Which operations fail, and when the power goes.

use super::failed;
use crate::disk::DiskError;

/// What a [`Fault`] strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Opening, listing or locking.
    Open,
    /// Reading from a file.
    Read,
    /// Creating a file.
    Create,
    /// Appending: a part of the bytes may arrive.
    Append,
    /// Cutting a file.
    Truncate,
    /// Syncing a file: the bytes that it should have covered will not survive a power cut, whatever later syncs say.
    Sync,
    /// Syncing a directory.
    SyncDirectory,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
}

impl DiskOperation {
    fn changes_something(self) -> bool {
        !matches!(self, DiskOperation::Open | DiskOperation::Read)
    }
}

/// An operation that fails.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What fails.
    pub operation: DiskOperation,
    /// Only where the path contains this; empty: everywhere.
    pub path_part: String,
    /// How many such operations still succeed before.
    pub skip: u64,
    /// How many fail then.
    pub times: u64,
    /// With what.
    pub error: DiskError,
}

impl Fault {
    /// The next `times` operations of this kind fail, wherever they are.
    pub fn next(operation: DiskOperation, times: u64) -> Fault {
        let error = failed("simulated disk", "injected fault");
        Fault { operation, path_part: String::new(), skip: 0, times, error }
    }
}

/// What becomes of one operation.
pub(super) enum FaultVerdict {
    Happens,
    /// Nothing happens.
    Never(DiskError),
    /// An append arrives in part; a sync loses what it should have covered.
    InPart(DiskError),
}

impl FaultVerdict {
    /// For operations that cannot happen in part.
    pub(super) fn pass(self) -> Result<(), DiskError> {
        match self {
            FaultVerdict::Happens => Ok(()),
            FaultVerdict::Never(error) | FaultVerdict::InPart(error) => Err(error),
        }
    }
}

#[derive(Default)]
pub(super) struct Faults {
    pub(super) armed: Vec<Fault>,
    /// Operations so far that changed something, or tried to.
    pub(super) operations: u64,
    power_ends_at: Option<u64>,
    power_off: bool,
}

impl Faults {
    pub(super) fn power_off_after(&mut self, operations: Option<u64>) {
        self.power_ends_at = operations.map(|operations| self.operations + operations);
    }

    pub(super) fn power_on(&mut self) {
        self.power_off = false;
        self.power_ends_at = None;
    }

    pub(super) fn judge(&mut self, operation: DiskOperation, path: &str) -> FaultVerdict {
        if self.power_off {
            return FaultVerdict::Never(failed(path, "the power is off"));
        }
        if operation.changes_something() {
            self.operations += 1;
            if self.power_ends_at.is_some_and(|end| self.operations > end) {
                self.power_off = true;
                let error = failed(path, "the power is off");
                // A sync that the end came before did nothing; one that the device refuses loses its bytes.
                return match operation {
                    DiskOperation::Append => FaultVerdict::InPart(error),
                    _ => FaultVerdict::Never(error),
                };
            }
        }
        let strikes = |fault: &&mut Fault| {
            fault.operation == operation && path.contains(&fault.path_part) && fault.times > 0
        };
        match self.armed.iter_mut().find(strikes) {
            None => FaultVerdict::Happens,
            Some(fault) if fault.skip > 0 => {
                fault.skip -= 1;
                FaultVerdict::Happens
            }
            Some(fault) => {
                fault.times -= 1;
                FaultVerdict::InPart(fault.error.clone())
            }
        }
    }
}
