//! What a program asks to be written, before a node has stamped it.

use model::{Context, Key, Value, WallMillis};
use wire::messages::Condition;

/// One put or delete.
#[derive(Clone, Debug)]
pub(crate) struct WriteOrder {
    pub(crate) key: Key,
    /// What the writer has seen.
    pub(crate) context: Option<Context>,
    pub(crate) condition: Condition,
    pub(crate) expires: Option<WallMillis>,
    pub(crate) value: Value,
}
