//! Mappings of the simulated disk: its bytes as they are now, with its faults.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{DiskOperation, SimulatedDisk, SimulatedFile, failed};
use crate::disk::DiskError;
use crate::disk::mapping::{Mapping, View};

struct SimulatedMapping {
    disk: SimulatedDisk,
    path: String,
    inode: u64,
    life: u64,
    length: u64,
}

impl SimulatedFile {
    pub(super) fn mapped(&self) -> Result<Arc<dyn Mapping>, DiskError> {
        let mut state = self.disk.state.lock();
        state.alive(self.life, &self.path)?;
        state.judge(DiskOperation::Open, &self.path).pass()?;
        let length = state.inode(self.inode, &self.path)?.data.len() as u64;
        Ok(Arc::new(SimulatedMapping {
            disk: self.disk.clone(),
            path: self.path.clone(),
            inode: self.inode,
            life: self.life,
            length,
        }))
    }
}

impl Mapping for SimulatedMapping {
    fn length(&self) -> u64 {
        self.length
    }

    fn view(&self, range: Range<u64>) -> Result<View<'_>, DiskError> {
        let mut state = self.disk.state.lock();
        state.alive(self.life, &self.path)?;
        state.warm()?;
        state.judge(DiskOperation::Read, &self.path).pass()?;
        let length = state.inode(self.inode, &self.path)?.data.len() as u64;
        if range.start > range.end || range.end > self.length {
            return Err(failed(&self.path, "bytes beyond the end of the file were asked for"));
        }
        if range.end > length {
            return Err(failed(&self.path, "the file is shorter than it was when it was mapped"));
        }
        let inode = self.inode;
        let bytes = MutexGuard::map(state, |state| {
            let inode = state.platter.inode(inode).expect("it was there under the same lock");
            &mut inode.data[range.start as usize..range.end as usize]
        });
        Ok(View::Held(bytes))
    }

    fn prefetch(&self, _offset: u64) {}

    fn fetch_ahead(&self, _range: Range<u64>) {}

    fn is_sound(&self) -> bool {
        true
    }

    fn refresh(&self) {}
}
