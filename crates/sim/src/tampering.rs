//! Networks with planted bugs: they read messages on their way and change them.
//!
//! Must never: be used where no bug is planted.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use model::{NodeId, Value, Version, VersionSet};
use wire::messages::{
    Merged, Request, Response, decode_request, decode_response, encode_request, encode_response,
};

use crate::dice::Dice;
use crate::network::Tamper;
use crate::plant::Plant;

/// Where planted tampering with bytes begins in a frame.
const TAMPERED: &[u8] = b"value-c";

/// What a planted bug does to frames; `None` where it is not one of the network.
pub fn tamper(plant: Plant, mut dice: Dice) -> Option<Tamper> {
    let mut values = BTreeMap::new();
    Some(match plant {
        Plant::TamperingNetwork => Box::new(move |frame: &mut Vec<u8>| {
            let place = frame.windows(TAMPERED.len()).position(|bytes| bytes == TAMPERED);
            if let Some(place) = place
                && dice.chance(50)
            {
                frame[place] = b'V';
            }
        }),
        Plant::ForgedAnswers => Box::new(forge_answer),
        Plant::HintsAsRecords | Plant::HintsRedirected | Plant::OldValues => {
            Box::new(move |frame: &mut Vec<u8>| change_merge(plant, &mut dice, &mut values, frame))
        }
        _ => return None,
    })
}

fn forge_answer(frame: &mut Vec<u8>) {
    let Ok((id, Response::ReplicaMerged(mut merged))) = decode_response(Bytes::copy_from_slice(frame)) else {
        return;
    };
    merged
        .outcomes
        .iter_mut()
        .filter(|outcome| outcome.is_err())
        .for_each(|outcome| *outcome = Ok(Merged::Changed));
    let mut bytes = BytesMut::new();
    encode_response(id, &Response::ReplicaMerged(merged), &mut bytes);
    *frame = bytes.to_vec();
}

/// The last value of each key that was on its way.
type Values = BTreeMap<(String, Bytes), Value>;

fn change_merge(plant: Plant, dice: &mut Dice, values: &mut Values, frame: &mut Vec<u8>) {
    let Ok((id, Request::ReplicaMerge(mut merge))) = decode_request(Bytes::copy_from_slice(frame)) else {
        return;
    };
    match plant {
        Plant::HintsAsRecords => merge.hint_for = None,
        Plant::HintsRedirected => merge.hint_for = merge.hint_for.map(|target| NodeId(target.0 % 3 + 1)),
        _ => {
            for (key, set) in &mut merge.entries {
                let place = (merge.store.to_string(), key.clone());
                let [newest] = set.versions() else { continue };
                let before = values.insert(place, newest.value.clone());
                if let Some(before) = before
                    && dice.chance(50)
                {
                    let version = Version { value: before, ..newest.clone() };
                    let changed =
                        VersionSet::from_parts(set.vector().clone(), [version].into_iter().collect());
                    *set = changed.expect("only the value is another");
                }
            }
        }
    }
    let mut bytes = BytesMut::new();
    encode_request(id, &Request::ReplicaMerge(merge), &mut bytes);
    *frame = bytes.to_vec();
}
