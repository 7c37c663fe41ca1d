//! A batch to a node's native port, as a client with its own ring sends it: gets to the replica, and puts to be stamped.
//!
//! Of an answer only its kind and length are looked at: reading it whole would cost the client half of what the node spends.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use model::StoreName;
use tokio::io::AsyncWriteExt;
use wire::error::ErrorCode;
use wire::messages::{
    Condition, Hello, Peer, Put, ReplicaGet, Request, RequestOptions, Response, Role, SLOT_BITS, StoreRef,
    Terms, VERSION_MAX, VERSION_MIN, decode_response, encode_request,
};

use super::super::draws::Owned;
use super::{Draw, LoadConnection, Replies, STORE};

/// The first bytes of a link, which the node sends back.
const PREAMBLE: &[u8] = b"TONTINE\x01\n";
/// Bytes that say how long a frame is.
const LENGTH_BYTES: usize = 4;
/// The longest frame that a node sends.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// The first byte of an answer to a get of a replica, and of one to a put.
const REPLICA_GOT: u8 = 0xa3;
const WRITTEN: u8 = 0x91;

/// Shakes hands.
pub(super) async fn greet(connection: &mut LoadConnection) -> io::Result<()> {
    let mut hello = BytesMut::new();
    let peer = Peer::Client { name: "tontine-bench".to_owned() };
    let greeting = Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, cluster: None, peer };
    hello.put_slice(PREAMBLE);
    frame(0, &greeting.into(), &mut hello);
    connection.stream.write_all(&hello).await?;
    while connection.received.len() < PREAMBLE.len() {
        connection.receive().await?;
    }
    if connection.received.split_to(PREAMBLE.len()) != PREAMBLE {
        return Err(io::Error::other("no node answers at this port"));
    }
    loop {
        if let Some(body) = whole(&connection.received)? {
            let body = Bytes::copy_from_slice(body);
            let _ = connection.received.split_to(LENGTH_BYTES + body.len());
            return match decode_response(body) {
                Ok((_, Response::Welcome(_))) => Ok(()),
                _ => Err(io::Error::other("a node did not answer the handshake")),
            };
        }
        connection.receive().await?;
    }
}

/// Appends a request for each. The first one has number `first`; a node ignores a number that its link has had already.
pub(super) fn encode<'a>(
    batch: impl Iterator<Item = (Draw, &'a Bytes)>,
    first: u64,
    owned: &Owned,
    value: &Bytes,
    sending: &mut BytesMut,
) {
    let store = StoreRef::from(&StoreName::new(STORE).expect("a constant that is a name"));
    let generation = owned.generation;
    for (number, (draw, key)) in (first..).zip(batch) {
        let (key, store) = (key.clone(), store.clone());
        let request = match draw.write {
            true => Request::Put(Put {
                store,
                generation,
                options: RequestOptions::default(),
                key,
                context: None,
                expires: None,
                condition: Condition::None,
                value: value.clone(),
            }),
            false => {
                let terms = Terms { since: owned.of(draw.key).1, role: Role::Replica };
                Request::ReplicaGet(ReplicaGet {
                    terms,
                    store,
                    generation,
                    keys: [key].into_iter().collect(),
                })
            }
        };
        frame(number << SLOT_BITS, &request, sending);
    }
}

fn frame(id: u64, request: &Request, out: &mut BytesMut) {
    let start = out.len();
    out.put_u32_le(0);
    encode_request(id, request, out);
    let length = u32::try_from(out.len() - start - LENGTH_BYTES).expect("a request is far below 4 GiB");
    out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

/// The body of the frame at the front, if it is whole.
fn whole(received: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some((length, rest)) = received.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(rest.get(..length))
}

/// Counts the whole answers at the front of what was received, and says how many bytes they have.
pub(super) fn take(received: &[u8], value_length: usize, replies: &mut Replies) -> io::Result<usize> {
    let mut at = 0;
    while let Some(body) = whole(&received[at..])? {
        match body[0] {
            REPLICA_GOT if body.len() > value_length => replies.well += 1,
            WRITTEN => replies.well += 1,
            _ => judge(body, replies),
        }
        at += LENGTH_BYTES + body.len();
    }
    Ok(at)
}

fn judge(body: &[u8], replies: &mut Replies) {
    match decode_response(Bytes::copy_from_slice(body)) {
        Ok((_, Response::Failure(failure))) if failure.code == ErrorCode::StaleGeneration => {
            replies.stale += 1
        }
        Ok((_, Response::Failure(failure))) => replies.ill(&failure.to_string()),
        Ok((_, Response::ReplicaGot(_))) => replies.ill("no record, or none that the node may tell"),
        Ok((_, other)) => replies.ill(&format!("an unexpected answer: {}", other.name())),
        Err(error) => replies.ill(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use model::Generation;
    use wire::messages::{Failure, ReplicaGot, decode_request, encode_response};

    use super::*;

    fn answer(response: &Response) -> Vec<u8> {
        let mut body = BytesMut::new();
        encode_response(1, response, &mut body);
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        [&length[..], &body].concat()
    }

    #[test]
    fn a_batch_is_gets_of_the_replica_and_puts_under_the_routes_generation() {
        let owned =
            Owned { generation: Generation(7), partitions: vec![0, 1], owners: vec![(0, Generation(3)); 2] };
        let keys = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let draws = [Draw { key: 0, write: false }, Draw { key: 1, write: true }];
        let mut sending = BytesMut::new();
        encode(draws.into_iter().zip(&keys), 1, &owned, &Bytes::from_static(b"xx"), &mut sending);
        let first = whole(&sending).unwrap().unwrap();
        let rest = &sending[LENGTH_BYTES + first.len()..];
        let Ok((0x1_0000, Request::ReplicaGet(get))) = decode_request(Bytes::copy_from_slice(first)) else {
            panic!()
        };
        assert_eq!(
            (get.generation, get.terms.since, &get.keys[0][..]),
            (Generation(7), Generation(3), &b"a"[..])
        );
        let put = Bytes::copy_from_slice(whole(rest).unwrap().unwrap());
        let Ok((0x2_0000, Request::Put(put))) = decode_request(put) else { panic!() };
        assert_eq!((&put.key[..], &put.value[..]), (&b"b"[..], &b"xx"[..]));
    }

    #[test]
    fn answers_are_told_apart_by_kind_and_length_and_refusals_by_their_code() {
        let empty = Response::ReplicaGot(ReplicaGot {
            generation: Generation(1),
            epoch: model::Epoch::default(),
            sets: [Ok(model::VersionSet::default())].into_iter().collect(),
        });
        let failure = |code| Response::Failure(Failure::new(code, "detail"));
        let all = [
            answer(&empty),
            answer(&failure(ErrorCode::StaleGeneration)),
            answer(&failure(ErrorCode::Overloaded)),
        ];
        let mut replies = Replies::default();
        let bytes = all.concat();
        let before_last = bytes.len() - all[2].len();
        assert_eq!(take(&bytes[..bytes.len() - 1], 100, &mut replies).unwrap(), before_last);
        assert_eq!((replies.well, replies.ill, replies.stale), (0, 1, 1));
        assert_eq!(take(&bytes[before_last..], 100, &mut replies).unwrap(), all[2].len());
        assert_eq!((replies.ill, replies.count()), (2, 3));
        // Longer than a value is one with a value.
        let mut replies = Replies::default();
        assert_eq!(take(&all[0], 2, &mut replies).unwrap(), all[0].len());
        assert_eq!(replies.well, 1);
        assert!(take(&[0; 8], 2, &mut replies).is_err(), "no frame is empty");
    }
}
