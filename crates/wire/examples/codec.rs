//! Times the codec's hot paths, in nanoseconds an operation: `cargo run --release -p wire --example codec`.
//!
//! Each figure is the best of several rounds, since everything that disturbs a round makes it longer.

use std::hint::black_box;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use model::versions::Stamp;
use model::{Actor, Generation, NodeId, StoreName, Timestamp, Value, VersionSet, WallMillis};
use smallvec::smallvec;
use wire::messages::{
    Get, Got, ReplicaGet, ReplicaMerge, Request, RequestOptions, Response, Role, StoreRef, Terms,
    decode_request, decode_response, encode_request, encode_response,
};
use wire::resp::{Command, CommandParser, Limits, Protocol, ReplyWriter};
use wire::versions::{decode_record, encode_record, peek_winner};

const ROUNDS: usize = 15;
const REPEATS: u32 = 20_000;

fn time(name: &str, operations: u32, mut work: impl FnMut()) {
    let best = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..REPEATS {
                work();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(REPEATS * operations)
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<52} {best:8.1} ns");
}

fn set(nodes: u32, value_bytes: usize) -> VersionSet {
    let mut set = VersionSet::default();
    for node in 1..=nodes {
        let mut sibling = VersionSet::default();
        let actor = Actor { node: NodeId(node), incarnation: 1_763_700_000_000, birth: 12_345 };
        let value = Value::Present(Bytes::from(vec![b'v'; value_bytes]));
        let timestamp = Timestamp(1_763_700_000_000 << 16);
        sibling.put(Stamp { actor, timestamp, expires: None, value }, None);
        set.merge(&sibling);
    }
    set
}

fn records() {
    for siblings in [1, 3] {
        let set = set(siblings, 1024);
        let own = set.vector().entries().first().map(|(actor, _)| *actor);
        let mut out = BytesMut::with_capacity(64 * 1024);
        encode_record(own, &set, &mut out);
        println!(
            "record of {siblings} x 1 KiB: {} bytes beside the values",
            out.len() - siblings as usize * 1024
        );
        let record = out.split().freeze();
        time(&format!("peek the winner of {siblings}"), 1, || {
            black_box(peek_winner(black_box(&record), WallMillis(0))).ok();
        });
        time(&format!("decode a record of {siblings}"), 1, || {
            black_box(decode_record(black_box(&record))).ok();
        });
        time(&format!("encode a record of {siblings}"), 1, || {
            out.clear();
            encode_record(own, black_box(&set), &mut out);
        });
    }
}

fn messages(store: &StoreRef) {
    let key = Bytes::from_static(b"user4832749823749823");
    let generation = Generation(17);
    let options = RequestOptions { deadline_ms: 1000, ..RequestOptions::default() };
    let get = Get { store: store.clone(), generation, options, key: key.clone() };
    let replica_get = ReplicaGet {
        terms: Terms { since: generation, role: Role::Replica }.into(),
        store: store.clone(),
        generation,
        keys: smallvec![key.clone()],
    };
    let entries = smallvec![(key, set(1, 1024))];
    let merge = ReplicaMerge {
        since: generation.into(),
        store: store.clone(),
        generation,
        epoch: model::Epoch(1),
        hint_for: None,
        entries,
    };
    let got = Got { replicas_answered: 2, sloppy: false, set: set(1, 1024) };
    for request in [Request::from(get), replica_get.into(), merge.into()] {
        let mut out = BytesMut::with_capacity(64 * 1024);
        time(&format!("encode {}", request.name()), 1, || {
            out.clear();
            encode_request(77, black_box(&request), &mut out);
        });
        let body = out.split().freeze();
        time(&format!("decode {}", request.name()), 1, || {
            black_box(decode_request(black_box(body.clone()))).ok();
        });
    }
    let response = Response::from(got);
    let mut out = BytesMut::with_capacity(64 * 1024);
    time("encode got, 1 KiB", 1, || {
        out.clear();
        encode_response(77, black_box(&response), &mut out);
    });
    let body = out.split().freeze();
    time("decode got, 1 KiB", 1, || {
        black_box(decode_response(black_box(body.clone()))).ok();
    });
}

/// A receive buffer filled with a pipeline of commands; filling it is part of the figure, as a read is.
fn commands(name: &str, args: &[&[u8]], pipeline: u32) {
    let mut batch = BytesMut::new();
    (0..pipeline).for_each(|_| Command::encode(args, &mut batch));
    let mut input = BytesMut::with_capacity(64 * 1024);
    time(&format!("fill a buffer with {pipeline} x {name}"), pipeline, || {
        input.clear();
        input.extend_from_slice(black_box(&batch));
    });
    let mut parser = CommandParser::new(Limits::DEFAULT);
    let mut input = BytesMut::with_capacity(64 * 1024);
    time(&format!("fill, and parse {pipeline} x {name}"), pipeline, || {
        input.reserve(32 * 1024);
        input.extend_from_slice(&batch);
        while let Ok(Some(command)) = parser.parse(&mut input) {
            black_box(command.arg(1));
        }
    });
}

fn resp() {
    let value = vec![b'v'; 1024];
    let key = b"key:000000123456";
    commands("GET", &[b"GET", key], 16);
    commands("SET of 1 KiB", &[b"SET", key, &value], 16);
    commands("GET", &[b"GET", key], 1);
    let mut out = BytesMut::with_capacity(64 * 1024);
    time("reply with a bulk of 1 KiB", 16, || {
        out.clear();
        for _ in 0..16 {
            ReplyWriter::new(&mut out, Protocol::Resp2).bulk(black_box(&value));
        }
    });
    time("reply with OK", 16, || {
        out.clear();
        for _ in 0..16 {
            ReplyWriter::new(black_box(&mut out), Protocol::Resp2).ok();
        }
    });
}

fn main() {
    let store = StoreRef::from(&StoreName::new("default").expect("a plain lowercase name is well formed"));
    records();
    messages(&store);
    resp();
}
