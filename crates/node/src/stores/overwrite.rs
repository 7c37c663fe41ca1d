//! Overwriting a key whose only replica this node is: what a plain SET of such a store does.
//!
//! A write like any other, with the same dots and timestamps, and the same record as [`LocalStore::stamp`] makes.
//! Nobody waits for the set that it leaves behind, so none is built: the record's head is computed from the head of
//! the one before, and the value goes from the caller's buffer straight to its place.

use bytes::Bytes;
use model::{Dot, Timestamp, Value};
use storage::Change;
use wire::messages::{Condition, Failure};
use wire::versions::{Single, peek_single, single_head};

use super::record::{corrupt, encode, refuse};
use super::store::{KeyPlace, LocalStore};
use super::write_order::{WriteOrder, check_key, check_length};

impl LocalStore {
    /// Replaces whatever is known of a key here.
    ///
    /// # Errors
    /// As [`LocalStore::stamp`] of an order without context and condition. Nothing is stored then.
    pub fn overwrite(&self, place: KeyPlace, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.check_complete(place.partition)?;
        check_key(self.definition(), key)?;
        check_length(self.definition(), value.len())?;
        let mut answer = Ok(());
        self.update(place, key, &mut |record| match self.overwriting(place, key, record, value) {
            Ok(change) => change,
            Err(failure) => {
                answer = Err(failure);
                Change::Keep
            }
        })
        .map_err(refuse)?;
        answer
    }

    fn overwriting<'a>(
        &self,
        place: KeyPlace,
        key: &[u8],
        record: Option<&Bytes>,
        value: &'a [u8],
    ) -> Result<Change<'a>, Failure> {
        if let Some((dot, known)) = self.next_alone(place, record)? {
            let timestamp = self.stamper.timestamp(known);
            debug_assert!(
                self.stamper.owns(dot.actor) && dot.count > 0,
                "this node stamps as itself: {dot:?}"
            );
            return Ok(Change::PutJoined(single_head(dot, timestamp, value.len()), value));
        }
        let value = Value::Present(Bytes::copy_from_slice(value));
        let order = WriteOrder { context: None, condition: Condition::None, expires: None, value };
        let (own, set, _) = self.stamp_record(place, record, order)?;
        self.note(place, key, record, &set);
        Ok(Change::Put(encode(Some(own), &set)))
    }

    /// The event that overwriting will be, and the timestamp that it must exceed, if it is going to be all that is
    /// known of the key: the actor of the version before is gone on with, or there was none.
    fn next_alone(
        &self,
        place: KeyPlace,
        record: Option<&Bytes>,
    ) -> Result<Option<(Dot, Timestamp)>, Failure> {
        let Some(record) = record else {
            let dot = Dot { actor: self.stamper.actor(None), count: 1 };
            return Ok(Some((dot, Timestamp::default())));
        };
        let single = peek_single(record).map_err(|_| corrupt(place.partition))?;
        Ok(single.and_then(|Single { own, dot, timestamp }| {
            let actor = own.filter(|own| self.stamper.owns(*own))?;
            Some((Dot { actor, count: dot.count.checked_add(1)? }, timestamp))
        }))
    }
}
