//! What a node is asked about itself, and what it says: `protocol::report` as JSON, which is typed at both ends.

use bytes::{Bytes, BytesMut};
use protocol::report::{Parts, Report};

use crate::codec::{Field, Reader, fields};
use crate::decode_error::DecodeError;

impl Field for Parts {
    const BYTES_MIN: usize = u16::BYTES_MIN;
    fn bytes_bound(&self) -> usize {
        self.0.bytes_bound()
    }
    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u16::read(reader).map(Parts)
    }
}

fields! {
    /// Asks a node for some parts of its report.
    pub struct ReportGet {
        /// Which.
        pub parts: Parts,
    }
}

fields! {
    /// What the node says of itself.
    pub struct ReportGot {
        /// `protocol::report::Report` as JSON.
        pub json: Bytes,
    }
}

impl ReportGot {
    /// As a message says it.
    pub fn of(report: &Report) -> ReportGot {
        ReportGot { json: serde_json::to_vec(report).expect("a report is plain data").into() }
    }

    /// What it says.
    ///
    /// # Errors
    /// [`DecodeError::Report`] when it is no report.
    pub fn report(&self) -> Result<Report, DecodeError> {
        serde_json::from_slice(&self.json).map_err(|error| DecodeError::Report { reason: error.to_string() })
    }
}
