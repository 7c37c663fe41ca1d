//! Where the arguments of a command lie, in the bytes that it came in.

/// Where an argument lies in its command's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArgRange {
    start: u32,
    length: u32,
}

impl ArgRange {
    /// Commands are shorter than 4 GiB: a parser's limits are asserted to be.
    pub(super) fn new(start: usize, length: usize) -> Self {
        ArgRange { start: start as u32, length: length as u32 }
    }

    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }
}
