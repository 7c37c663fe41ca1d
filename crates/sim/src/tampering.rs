//! Networks with planted bugs: they read messages on their way and change them.
//!
//! Must never: be used where no bug is planted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use model::{Epoch, Generation, NodeId, StoreName, Token, Value, Version, VersionSet};
use protocol::report::{ArtifactState, Report};
use wire::ErrorCode;
use wire::messages::{
    Condition, Merged, ReplicaGot, ReplicaMerged, ReportGot, Request, Response, decode_request,
    decode_response, encode_request, encode_response,
};

use crate::book::Book;
use crate::by_hash::ByHash;
use crate::cluster::STORES;
use crate::dice::Dice;
use crate::network::Tamper;
use crate::plant::Plant;

/// Where planted tampering with bytes begins in a frame.
const TAMPERED: &[u8] = b"value-c";

/// What a planted bug does to frames; `None` where it is not one of the network.
pub fn tamper(plant: Plant, mut dice: Dice, by_hash: ByHash) -> Option<Tamper> {
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
        Plant::EmptyForRefilling | Plant::EqualSums | Plant::MovesUncompared => {
            Box::new(move |frame: &mut Vec<u8>| change_answer(plant, frame))
        }
        Plant::HeedlessConfirms => Box::new(|frame: &mut Vec<u8>| shorten_confirm(frame, &|_| false)),
        Plant::CollectsByHash => {
            Box::new(move |frame: &mut Vec<u8>| shorten_confirm(frame, &|key| by_hash.finds(key)))
        }
        Plant::WalksByHash => Box::new(go_on_by_hash),
        Plant::AbsentForElsewhere => Box::new(deny),
        Plant::StagedClaimed => Box::new(claim_staged),
        Plant::MergesClaimed => Box::new(claim_merged),
        Plant::CrowdedIsDone => {
            let mut asked = BTreeMap::new();
            Box::new(move |frame: &mut Vec<u8>| claim_done(&mut asked, frame))
        }
        Plant::RefusalIsAbsence => {
            let mut asked = BTreeMap::new();
            Box::new(move |frame: &mut Vec<u8>| find_nothing(&mut asked, frame))
        }
        Plant::ConditionsDropped => Box::new(drop_condition),
        Plant::DoorsDenyKeys => Box::new(|frame: &mut Vec<u8>| deny_keys(frame)),
        Plant::HintsRedirected | Plant::OldValues => {
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

/// Says that an overloaded node has merged all that it was sent. Links number their requests each for itself: where two
/// merges have one number, the count of the later may not fit, and the answer is taken for a refusal.
fn claim_done(asked: &mut BTreeMap<u64, (usize, Generation)>, frame: &mut Vec<u8>) {
    let bytes = Bytes::copy_from_slice(frame);
    if let Ok((id, Request::ReplicaMerge(merge))) = decode_request(bytes.clone()) {
        asked.insert(id, (merge.entries.len(), merge.generation));
        return;
    }
    let Ok((id, Response::Failure(failure))) = decode_response(bytes) else { return };
    if let (ErrorCode::Overloaded, Some(&(entries, generation))) = (failure.code, asked.get(&id)) {
        let outcomes = std::iter::repeat_n(Ok(Merged::Changed), entries).collect();
        let merged = ReplicaMerged { generation, outcomes };
        let mut bytes = BytesMut::new();
        encode_response(id, &Response::ReplicaMerged(merged), &mut bytes);
        *frame = bytes.to_vec();
    }
}

/// Says that a node which refuses to read some keys has found nothing.
fn find_nothing(asked: &mut BTreeMap<u64, (usize, Generation)>, frame: &mut Vec<u8>) {
    let bytes = Bytes::copy_from_slice(frame);
    if let Ok((id, Request::ReplicaGet(get))) = decode_request(bytes.clone()) {
        asked.insert(id, (get.keys.len(), get.generation));
        return;
    }
    let Ok((id, Response::Failure(failure))) = decode_response(bytes) else { return };
    if let (ErrorCode::Overloaded, Some(&(keys, generation))) = (failure.code, asked.get(&id)) {
        let sets = std::iter::repeat_n(Ok(VersionSet::default()), keys).collect();
        let got = ReplicaGot { generation, epoch: Default::default(), sets };
        let mut bytes = BytesMut::new();
        encode_response(id, &Response::ReplicaGot(got), &mut bytes);
        *frame = bytes.to_vec();
    }
}

fn drop_condition(frame: &mut Vec<u8>) {
    let Ok((id, Request::Put(mut put))) = decode_request(Bytes::copy_from_slice(frame)) else { return };
    if matches!(put.condition, Condition::IfAbsent | Condition::IfPresent) {
        put.condition = Condition::None;
        replace_request(frame, id, &Request::Put(put));
    }
}

/// What plain clients are told arrives as text.
fn deny_keys(frame: &mut [u8]) {
    let (one, zero) = (b":1\r\n", b":0\r\n");
    let mut from = 0;
    while let Some(place) = frame[from..].windows(one.len()).position(|bytes| bytes == one) {
        frame[from + place..from + place + one.len()].copy_from_slice(zero);
        from += place + one.len();
    }
}

/// What a planted bug does to frames as they arrive.
pub fn tamper_late(plant: Plant) -> Option<Tamper> {
    let mut newest = Epoch(0);
    (plant == Plant::LateTags).then(|| {
        Box::new(move |frame: &mut Vec<u8>| {
            let Ok((id, Request::ReplicaMerge(mut merge))) = decode_request(Bytes::copy_from_slice(frame))
            else {
                return;
            };
            newest = newest.max(merge.epoch);
            merge.epoch = newest;
            replace_request(frame, id, &Request::ReplicaMerge(merge));
        }) as Tamper
    })
}

/// What a planted bug does to requests about artifacts as they arrive.
pub fn artifacts_late(plant: Plant, book: &Arc<Book>) -> Option<Tamper> {
    let book = book.clone();
    (plant == Plant::ServedForAsked).then(|| {
        Box::new(move |frame: &mut Vec<u8>| {
            let Ok((id, Request::ArtifactGet(mut get))) = decode_request(Bytes::copy_from_slice(frame))
            else {
                return;
            };
            let Some((number, manifest)) = book.served() else { return };
            (get.number, get.manifest) = (number, manifest);
            replace_request(frame, id, &get.into());
        }) as Tamper
    })
}

/// Says that a key is absent for a node that does not hold it. Other nodes give that one nothing, so that there are some.
fn deny(frame: &mut Vec<u8>) {
    let Ok((id, response)) = decode_response(Bytes::copy_from_slice(frame)) else { return };
    let denied = match response {
        Response::ArtifactBytes(_) => {
            let last = frame.len() - 1;
            frame[last] ^= 1;
            return;
        }
        Response::Failure(failure) if failure.code == ErrorCode::ArtifactNotHere => {
            let sets = [Ok(VersionSet::default())].into_iter().collect();
            ReplicaGot { generation: Default::default(), epoch: Default::default(), sets }
        }
        Response::ReplicaGot(mut got) if got.sets.contains(&Err(ErrorCode::ArtifactNotHere)) => {
            let refused = |set: &&mut Result<VersionSet, ErrorCode>| **set == Err(ErrorCode::ArtifactNotHere);
            got.sets.iter_mut().filter(refused).for_each(|set| *set = Ok(VersionSet::default()));
            got
        }
        _ => return,
    };
    let mut bytes = BytesMut::new();
    encode_response(id, &Response::ReplicaGot(denied), &mut bytes);
    *frame = bytes.to_vec();
}

/// Says of a node that it holds all that is listed.
fn claim_staged(frame: &mut Vec<u8>) {
    change_report(frame, |report| {
        let generation = report.generation;
        for artifact in report.artifacts.iter_mut().flat_map(|artifacts| &mut artifacts.listed) {
            (artifact.state, artifact.whole_under) = (ArtifactState::Staged, generation);
        }
    });
}

/// Says of a node that it has merged what it enters with all others.
fn claim_merged(frame: &mut Vec<u8>) {
    change_report(frame, |report| {
        for entered in report.moves.iter_mut().flat_map(|moves| &mut moves.entered) {
            let stores = STORES.map(|store| StoreName::new(store).expect("a store of every run"));
            entered.whole = true;
            entered.merged = stores.map(|store| (store, (1..10).map(NodeId).collect())).into();
        }
    });
}

fn change_report(frame: &mut Vec<u8>, change: impl FnOnce(&mut Report)) {
    let Ok((id, Response::ReportGot(got))) = decode_response(Bytes::copy_from_slice(frame)) else { return };
    let Ok(mut report) = got.report() else { return };
    change(&mut report);
    let mut bytes = BytesMut::new();
    encode_response(id, &ReportGot::of(&report).into(), &mut bytes);
    *frame = bytes.to_vec();
}

fn change_answer(plant: Plant, frame: &mut Vec<u8>) {
    let Ok((id, mut response)) = decode_response(Bytes::copy_from_slice(frame)) else { return };
    match (plant, &mut response) {
        (Plant::EmptyForRefilling, Response::ReplicaGot(got)) => {
            let refused = |set: &&mut Result<VersionSet, ErrorCode>| **set == Err(ErrorCode::Refilling);
            got.sets.iter_mut().filter(refused).for_each(|set| *set = Ok(VersionSet::default()));
        }
        (Plant::EqualSums, Response::TreeSummed(summed)) => summed.differing.clear(),
        (Plant::MovesUncompared, Response::TreeSummed(summed)) => {
            summed.differing.clear();
            summed.unready.clear();
        }
        _ => return,
    }
    let mut bytes = BytesMut::new();
    encode_response(id, &response, &mut bytes);
    *frame = bytes.to_vec();
}

/// Has a page of a walk begin behind where the plain hash of the last key lies, if that is further on: otherwise the walk
/// would never end.
fn go_on_by_hash(frame: &mut Vec<u8>) {
    let Ok((id, Request::Scan(mut scan))) = decode_request(Bytes::copy_from_slice(frame)) else { return };
    if let Some((token, key)) = &mut scan.after
        && Token::of(key) > *token
    {
        *token = Token::of(key);
        replace_request(frame, id, &Request::Scan(scan));
    }
}

/// Leaves of the keys that a node shall make clean only those that it would find.
fn shorten_confirm(frame: &mut Vec<u8>, finds: &dyn Fn(&[u8]) -> bool) {
    let Ok((id, Request::CollectConfirm(mut confirm))) = decode_request(Bytes::copy_from_slice(frame)) else {
        return;
    };
    confirm.keys.retain(|(_, (key, _))| finds(key));
    replace_request(frame, id, &Request::CollectConfirm(confirm));
}

fn replace_request(frame: &mut Vec<u8>, id: u64, request: &Request) {
    let mut bytes = BytesMut::new();
    encode_request(id, request, &mut bytes);
    *frame = bytes.to_vec();
}

/// The last value of each key that was on its way.
type Values = BTreeMap<(String, Bytes), Value>;

fn change_merge(plant: Plant, dice: &mut Dice, values: &mut Values, frame: &mut Vec<u8>) {
    let Ok((id, Request::ReplicaMerge(mut merge))) = decode_request(Bytes::copy_from_slice(frame)) else {
        return;
    };
    match plant {
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
    replace_request(frame, id, &Request::ReplicaMerge(merge));
}
