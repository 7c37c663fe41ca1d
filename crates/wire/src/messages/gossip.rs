//! What nodes tell each other about all nodes, several times a second.
//!
//! A [`Row`] belongs to the failure detector of `protocol`; here is how it looks in bytes.

use bytes::{Bytes, BytesMut};
use model::{Generation, NodeId};
use protocol::gossip::{GossipLoad, Row};

use crate::codec::{Field, Reader, fields};
use crate::decode_error::DecodeError;

fields! {
    /// A node's whole table, for one peer.
    pub struct Gossip {
        /// Who sends it.
        pub from: NodeId,
        /// The sender's cluster document.
        pub generation: Generation,
        /// What it knows about all nodes, itself included.
        pub rows: Vec<Row>,
    }
}

fields! {
    /// What the receiver of a table knows better.
    pub struct Gossiped {
        /// Rows that are newer than those of the table, or were missing in it.
        pub rows: Vec<Row>,
        /// The cluster document as JSON, when the sender's generation is older.
        pub cluster: Option<Bytes>,
    }
}

impl Field for GossipLoad {
    const BYTES_MIN: usize = 3;
    fn bytes_bound(&self) -> usize {
        self.operations_per_second.bytes_bound() + self.data_bytes.bytes_bound() + self.links.bytes_bound()
    }
    fn write(&self, out: &mut BytesMut) {
        self.operations_per_second.write(out);
        self.data_bytes.write(out);
        self.links.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(GossipLoad {
            operations_per_second: Field::read(reader)?,
            data_bytes: Field::read(reader)?,
            links: Field::read(reader)?,
        })
    }
}

impl Field for Row {
    const BYTES_MIN: usize = 6 + GossipLoad::BYTES_MIN;
    fn bytes_bound(&self) -> usize {
        36 + self.load.bytes_bound()
    }
    fn write(&self, out: &mut BytesMut) {
        self.node.write(out);
        self.incarnation.write(out);
        self.heartbeat.write(out);
        self.left.write(out);
        self.generation.write(out);
        self.epoch.write(out);
        self.load.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Row {
            node: Field::read(reader)?,
            incarnation: Field::read(reader)?,
            heartbeat: Field::read(reader)?,
            left: Field::read(reader)?,
            generation: Field::read(reader)?,
            epoch: Field::read(reader)?,
            load: Field::read(reader)?,
        })
    }
}
