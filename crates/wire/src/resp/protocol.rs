//! The two versions of the Redis protocol.

/// Which version of the protocol a connection speaks; `HELLO` settles it, version 2 until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2: no maps, no booleans, nulls are lengths of -1.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}
