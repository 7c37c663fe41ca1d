//! A write before and after it is stamped, what must hold for it, and the stamping itself.

use model::limits::FRAME_BYTES_MAX;
use model::versions::Stamp;
use model::{Actor, Context, Dot, Resolver, Store, Timestamp, Value, VersionSet, WallMillis};
use storage::Commit;
use wire::error::ErrorCode;
use wire::messages::{Condition, Failure};

use super::stamper::Stamper;

/// Bytes of a key's concurrent versions together: half a frame, because replicas exchange them in one, and a frame
/// holds more than them.
const SIBLING_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// A put or delete before it is stamped.
#[derive(Clone, Debug)]
pub struct WriteOrder {
    /// What the writer has seen; `None` replaces what this node knows.
    pub context: Option<Context>,
    /// What must hold here for the write to happen.
    pub condition: Condition,
    /// From when on the value reads as absent.
    pub expires: Option<WallMillis>,
    /// What is written.
    pub value: Value,
}

/// A write that this node stamped and stored.
#[derive(Clone, Debug)]
pub struct Stamped {
    /// The key's whole state after the write, for the other replicas.
    pub set: VersionSet,
    /// The event that is the write.
    pub dot: Dot,
    /// What the writer has seen once it learns of the write: the whole state if the write is alone. Beside
    /// siblings only what the writer's own context says: a vector cannot name the write without claiming its actor's
    /// earlier writes, which may be siblings that the writer never saw.
    pub context: Context,
    /// Where to wait for its durability.
    pub commit: Commit,
}

impl Stamped {
    pub(crate) fn new(set: VersionSet, dot: Dot, own: Option<Context>, commit: Option<Commit>) -> Self {
        assert!(set.vector().covers(dot), "a write that was stamped is known to its key's state");
        let context = match own {
            Some(own) if set.versions().len() > 1 => own,
            _ => set.context(),
        };
        Stamped { set, dot, context, commit: commit.expect("a put has a position") }
    }
}

/// Stamps a write into what is known of its key, as replica or fallback, and checks that the result can be kept.
pub(crate) fn stamp(
    stamper: &Stamper,
    definition: &Store,
    own: Option<Actor>,
    set: &mut VersionSet,
    known: Timestamp,
    order: WriteOrder,
) -> Result<(Actor, Dot), Failure> {
    let actor = stamper.actor(own);
    let seen = order.context.as_ref().map_or_else(Default::default, |context| context.timestamp).max(known);
    let timestamp = match order.condition {
        Condition::Touch => stamper.timestamp_right_after(seen),
        _ => stamper.timestamp(seen),
    };
    let WriteOrder { context, expires, value, .. } = order;
    let dot =
        set.put(Stamp { actor, timestamp, expires, value }, context.as_ref().map(|context| &context.vector));
    set.resolve(definition.resolver);
    debug_assert!(
        set.holds(dot) || timestamp.0 == u64::MAX,
        "the newest write is not resolved away, unless a broken clock has stamped the end of time"
    );
    let (siblings, bytes) = (set.versions().len(), wire::versions::record_bytes(None, set));
    if siblings > definition.siblings_max || (siblings > 1 && bytes > SIBLING_BYTES_MAX) {
        return Err(Failure::new(
            ErrorCode::TooManySiblings,
            format!(
                "the key would have {siblings} concurrent versions of {bytes} bytes together; the limits of store {} are \
                 {} and {SIBLING_BYTES_MAX}: read them, merge them, and put the result with the context of that read",
                definition.name, definition.siblings_max
            ),
        ));
    }
    Ok((actor, dot))
}

/// Checks that a key fits the pattern of the store's keys, if it has one. No other key is ever stored, so none is missed.
pub(crate) fn check_key(definition: &Store, key: &[u8]) -> Result<(), Failure> {
    let Some(windows) = definition.placement.windows() else { return Ok(()) };
    match windows.parts(key) {
        Some(_) => Ok(()),
        None => Err(Failure::new(
            ErrorCode::KeyUnfit,
            format!("keys of store {} are {}, and this one is not", definition.name, windows.key),
        )),
    }
}

/// Checks a value against the store's limit.
pub(crate) fn check_size(definition: &Store, value: &Value) -> Result<(), Failure> {
    match value {
        Value::Present(bytes) => check_length(definition, bytes.len()),
        Value::Tombstone => Ok(()),
    }
}

/// Checks a value's length against the store's limit.
pub(crate) fn check_length(definition: &Store, bytes: usize) -> Result<(), Failure> {
    if bytes <= definition.value_bytes_max {
        return Ok(());
    }
    let (limit, name) = (definition.value_bytes_max, &definition.name);
    let detail = format!("value of {bytes} bytes is over the limit of {limit} bytes of store {name}");
    Err(Failure::new(ErrorCode::ValueTooLarge, detail))
}

/// Checks what must hold of a key before it is written.
pub(crate) fn check_condition(
    definition: &Store,
    set: &VersionSet,
    order: &WriteOrder,
    now: WallMillis,
) -> Result<(), Failure> {
    let failed = |detail: &str| Err(Failure::new(ErrorCode::ConditionFailed, detail));
    match order.condition {
        Condition::IfAbsent if set.live(now).next().is_some() => return failed("the key already exists"),
        Condition::IfPresent if set.live(now).next().is_none() => return failed("the key does not exist"),
        _ => {}
    }
    let Some(context) = &order.context else { return Ok(()) };
    let must_be_current = matches!(order.condition, Condition::IfCurrent | Condition::Touch)
        || definition.resolver == Resolver::LastWriteWins;
    if must_be_current && !set.is_seen_by(&context.vector) {
        return Err(Failure::new(
            ErrorCode::Obsolete,
            "the key has a newer version than the context covers: get the key again, and put with the new context",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use model::{Consistency, NodeId, StoreName};
    use wire::versions::record_bytes;

    use super::*;
    use crate::stores::trials::Wall;

    /// Two versions beside each other, the second with a value of this many bytes: what they take, and how each was
    /// refused.
    fn beside_another(first: &Bytes, bytes: usize) -> (usize, [Option<ErrorCode>; 2]) {
        let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let definition = Store::new(StoreName::new("s").unwrap(), one).unwrap();
        let definition = Store { resolver: Resolver::Siblings, ..definition };
        let stamper = Stamper::new(NodeId(1), 1, 0, Arc::new(Wall::default()));
        let mut set = VersionSet::default();
        let refused = [first.clone(), vec![0; bytes].into()].map(|value| {
            let (context, value) = (Some(Context::default()), Value::Present(value));
            let order = WriteOrder { context, condition: Condition::None, expires: None, value };
            let known = set.timestamp_max();
            stamp(&stamper, &definition, None, &mut set, known, order).err().map(|failure| failure.code)
        });
        assert_eq!(set.versions().len(), 2);
        (record_bytes(None, &set), refused)
    }

    #[test]
    fn siblings_may_take_half_a_frame_together_and_no_byte_more() {
        let too_many = Some(ErrorCode::TooManySiblings);
        let half = Bytes::from(vec![0; SIBLING_BYTES_MAX / 2]);
        // Less by a few bytes, which lengths take no fewer for.
        let nearly = SIBLING_BYTES_MAX / 2 - 1024;
        let room = nearly + SIBLING_BYTES_MAX - beside_another(&half, nearly).0;
        assert_eq!(beside_another(&half, room), (SIBLING_BYTES_MAX, [None, None]));
        assert_eq!(beside_another(&half, room + 1), (SIBLING_BYTES_MAX + 1, [None, too_many]));
        let large = Bytes::from(vec![0; SIBLING_BYTES_MAX]);
        assert_eq!(beside_another(&large, 0).1, [None, too_many], "one alone has its own limit");
    }
}
