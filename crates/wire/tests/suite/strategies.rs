//! Arbitrary but well-formed values.

use bytes::Bytes;
use model::{
    Actor, ArtifactNumber, Context, Dot, Epoch, Generation, ManifestDigest, NodeId, PartitionId, StoreName,
    Timestamp, Token, Value, Vector, Version, VersionSet, WallMillis,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use protocol::antientropy::merkle::{Digest, Span};
use protocol::gossip::{GossipLoad, Row};
use protocol::report::Parts;
use wire::ErrorCode;
use wire::messages::*;

/// Numbers of every length, small ones often.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, any::<u8>().prop_map(u64::from), any::<u32>().prop_map(u64::from), any::<u64>()]
}

fn count() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number.max(1))
}

pub fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 100..300)].prop_map(Bytes::from)
}

fn actor() -> impl Strategy<Value = Actor> {
    (number(), number(), number()).prop_map(|(node, incarnation, birth)| Actor {
        node: NodeId(node as u32),
        incarnation,
        birth,
    })
}

fn wall() -> impl Strategy<Value = WallMillis> {
    number().prop_map(WallMillis)
}

fn vector() -> impl Strategy<Value = Vector> {
    btree_map(actor(), count(), 0..5).prop_map(Vector::from_entries)
}

pub fn context() -> impl Strategy<Value = Context> {
    (vector(), any::<u64>())
        .prop_map(|(vector, timestamp)| Context { vector, timestamp: Timestamp(timestamp) })
}

/// Picks an event that the vector covers, and what it wrote.
type Pick = (prop::sample::Index, u64, u8, Option<WallMillis>, Option<Bytes>);

fn pick() -> impl Strategy<Value = Pick> {
    (any::<prop::sample::Index>(), number(), 0..4_u8, option::of(wall()), option::of(bytes()))
}

fn set_from(vector: Vector, picks: Vec<Pick>) -> VersionSet {
    let entries = vector.entries().to_vec();
    let mut versions = std::collections::BTreeMap::new();
    for (index, count, timestamp, expires, value) in picks {
        if entries.is_empty() {
            break;
        }
        let (actor, count_max) = *index.get(&entries);
        // Often the actor's last event, as in life.
        let count = if count % 3 == 0 { count_max } else { count % count_max + 1 };
        let value = value.map_or(Value::Tombstone, Value::Present);
        let dot = Dot { actor, count };
        // Few timestamps, so that ties happen.
        versions.insert(dot, Version { dot, timestamp: Timestamp(u64::from(timestamp)), expires, value });
    }
    VersionSet::from_parts(vector, versions.into_values().collect()).expect("dots are picked from the vector")
}

pub fn set() -> impl Strategy<Value = VersionSet> {
    (vector(), vec(pick(), 0..4)).prop_map(|(vector, picks)| set_from(vector, picks))
}

/// A set, and perhaps one of its actors.
pub fn record() -> impl Strategy<Value = (Option<Actor>, VersionSet)> {
    (set(), option::of(any::<prop::sample::Index>())).prop_map(|(set, own)| {
        let entries = set.vector().entries();
        let own = own.filter(|_| !entries.is_empty()).map(|index| index.get(entries).0);
        (own, set)
    })
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..6).prop_map(String::from_iter)
}

fn store() -> impl Strategy<Value = StoreRef> {
    vec(select(b"abz09_-".to_vec()), 0..10).prop_map(|rest| {
        let name = format!("s{}", String::from_utf8(rest).unwrap());
        StoreRef::from(&StoreName::new(name).unwrap())
    })
}

fn generation() -> impl Strategy<Value = Generation> {
    number().prop_map(Generation)
}

fn options() -> impl Strategy<Value = RequestOptions> {
    (option::of(any::<u8>()), option::of(any::<u8>()), option::of(any::<bool>()), any::<u32>()).prop_map(
        |(required, preferred, sloppy, deadline_ms)| RequestOptions {
            required,
            preferred,
            sloppy,
            deadline_ms,
        },
    )
}

fn condition() -> impl Strategy<Value = Condition> {
    select(vec![Condition::None, Condition::IfAbsent, Condition::IfPresent, Condition::IfCurrent])
}

fn put_entry() -> impl Strategy<Value = PutEntry> {
    (bytes(), option::of(context()), option::of(wall()), condition(), bytes()).prop_map(
        |(key, context, expires, condition, value)| PutEntry { key, context, expires, condition, value },
    )
}

fn row() -> impl Strategy<Value = Row> {
    let load = (number(), number(), any::<u32>());
    (any::<u32>(), number(), number(), any::<bool>(), generation(), number(), load).prop_map(
        |(node, incarnation, heartbeat, left, generation, epoch, load)| Row {
            node: NodeId(node),
            incarnation,
            heartbeat,
            left,
            generation,
            epoch,
            load: GossipLoad { operations_per_second: load.0, data_bytes: load.1, links: load.2 },
        },
    )
}

fn head() -> impl Strategy<Value = (StoreRef, Generation, RequestOptions)> {
    (store(), generation(), options())
}

fn after() -> impl Strategy<Value = Option<ScanAfter>> {
    option::of((any::<u64>().prop_map(Token), bytes()))
}

fn hello() -> impl Strategy<Value = Hello> {
    let peer = prop_oneof![
        text().prop_map(|name| Peer::Client { name }),
        (any::<u32>(), number()).prop_map(|(id, incarnation)| Peer::Node { id: NodeId(id), incarnation }),
    ];
    (any::<u16>(), any::<u16>(), option::of(text()), peer).prop_map(
        |(version_min, version_max, cluster, peer)| Hello { version_min, version_max, cluster, peer },
    )
}

fn scan() -> impl Strategy<Value = Scan> {
    (generation(), store(), generation(), any::<u32>(), after(), any::<u32>(), any::<u32>()).prop_map(
        |(since, store, generation, partition, after, records_max, bytes_max)| Scan {
            since,
            store,
            generation,
            partition: PartitionId(partition),
            after,
            records_max,
            bytes_max,
        },
    )
}

/// Those that say little more than their kind.
fn plain_request() -> impl Strategy<Value = Request> {
    select(vec![
        Request::Ping(Ping {}),
        ClusterGet {}.into(),
        OfficeGet {}.into(),
        Authenticate { user: "shop".to_owned(), secret: SecretText("tontine_x".to_owned()) }.into(),
        ReportGet { parts: Parts::NODES | Parts(1 << 15) }.into(),
        MetricsGet {}.into(),
    ])
}

/// Orders, and what is asked of them.
fn order_request() -> impl Strategy<Value = Request> {
    let (number, wait) = (any::<u64>(), any::<u32>());
    prop_oneof![
        (bytes(), "[a-z ]{0,20}", wait)
            .prop_map(|(json, by, wait_ms)| { OrderGive { json, by, wait_ms }.into() }),
        (number, wait).prop_map(|(number, wait_ms)| OrderAnswer { number, wait_ms }.into()),
        (number, any::<bool>(), any::<u64>(), wait)
            .prop_map(|(number, all, since, wait_ms)| { PlanGet { number, all, since, wait_ms }.into() }),
    ]
}

pub fn request() -> impl Strategy<Value = Request> {
    let replica_merge = (
        generation(),
        store(),
        generation(),
        any::<u64>(),
        option::of(any::<u32>()),
        vec((bytes(), set()), 0..4),
    )
        .prop_map(|(since, store, generation, epoch, hint_for, entries)| ReplicaMerge {
            since,
            store,
            generation,
            epoch: Epoch(epoch),
            hint_for: hint_for.map(NodeId),
            entries: entries.into(),
        });
    let put = (head(), put_entry()).prop_map(|((store, generation, options), entry)| {
        let PutEntry { key, context, expires, condition, value } = entry;
        Put { store, generation, options, key, context, expires, condition, value }
    });
    let delete = (head(), put_entry()).prop_map(|((store, generation, options), entry)| {
        let PutEntry { key, context, condition, .. } = entry;
        Delete { store, generation, options, key, context, condition }
    });
    prop_oneof![
        hello().prop_map(Request::from),
        plain_request(),
        order_request(),
        (head(), bytes()).prop_map(|((store, generation, options), key)| {
            Get { store, generation, options, key }.into()
        }),
        put.prop_map(Request::from),
        delete.prop_map(Request::from),
        (head(), vec(bytes(), 0..5)).prop_map(|((store, generation, options), keys)| {
            MultiGet { store, generation, options, keys }.into()
        }),
        (head(), vec(put_entry(), 0..4)).prop_map(|((store, generation, options), entries)| {
            MultiPut { store, generation, options, entries }.into()
        }),
        (head(), vec(put_entry(), 0..4)).prop_map(|((store, generation, options), entries)| {
            let entries = entries.into_iter();
            let delete = |PutEntry { key, context, condition, .. }| DeleteEntry { key, context, condition };
            MultiDelete { store, generation, options, entries: entries.map(delete).collect() }.into()
        }),
        (terms(), store(), generation(), vec(bytes(), 0..4)).prop_map(|(terms, store, generation, keys)| {
            ReplicaGet { terms, store, generation, keys: keys.into() }.into()
        }),
        artifact_request(),
        replica_merge.prop_map(Request::from),
        scan().prop_map(Request::from),
        repair_request(),
        (number(), number(), any::<u32>(), any::<u32>()).prop_map(|(run, after, count_max, wait_ms)| {
            EventsGet { run, after, count_max, wait_ms }.into()
        }),
        (any::<u32>(), generation(), vec(row(), 0..4))
            .prop_map(|(from, generation, rows)| { Gossip { from: NodeId(from), generation, rows }.into() }),
    ]
}

fn code() -> impl Strategy<Value = ErrorCode> {
    select(ErrorCode::ALL)
}

fn failure() -> impl Strategy<Value = Failure> {
    (code(), text(), option::of(bytes())).prop_map(|(code, detail, cluster)| Failure {
        code,
        detail,
        cluster,
    })
}

fn written() -> impl Strategy<Value = Written> {
    (actor(), count(), any::<u8>(), any::<bool>(), context()).prop_map(
        |(actor, count, acks, sloppy, context)| Written { dot: Dot { actor, count }, acks, sloppy, context },
    )
}

fn welcome() -> impl Strategy<Value = Welcome> {
    (any::<u16>(), text(), any::<u32>(), generation(), any::<u32>(), any::<u32>()).prop_map(
        |(version, cluster, node, generation, key_bytes_max, frame_bytes_max)| Welcome {
            version,
            cluster,
            node: NodeId(node),
            generation,
            key_bytes_max,
            frame_bytes_max,
        },
    )
}

fn terms() -> impl Strategy<Value = Terms> {
    let role = select(vec![Role::Replica, Role::StandIn]);
    (any::<u64>(), role).prop_map(|(since, role)| Terms { since: Generation(since), role })
}

pub fn response() -> impl Strategy<Value = Response> {
    let merged = select(vec![Merged::Changed, Merged::Known, Merged::Superseded]);
    prop_oneof![
        welcome().prop_map(Response::from),
        bytes().prop_map(|json| ClusterDocument { json }.into()),
        bytes().prop_map(|json| ReportGot { json }.into()),
        (number(), bytes()).prop_map(|(file_bytes, bytes)| ArtifactBytes { file_bytes, bytes }.into()),
        Just(Response::Pong(Pong {})),
        (any::<u8>(), any::<bool>(), set()).prop_map(|(replicas_answered, sloppy, set)| Got {
            replicas_answered,
            sloppy,
            set
        }
        .into()),
        written().prop_map(Response::from),
        vec(prop::result::maybe_err(set(), failure()), 0..4).prop_map(|results| MultiGot { results }.into()),
        vec(prop::result::maybe_err(written(), failure()), 0..4)
            .prop_map(|results| MultiWritten { results }.into()),
        (generation(), any::<u64>(), vec(prop::result::maybe_err(set(), code()), 0..4)).prop_map(
            |(generation, epoch, sets)| {
                ReplicaGot { generation, epoch: Epoch(epoch), sets: sets.into() }.into()
            }
        ),
        (generation(), vec(prop::result::maybe_err(merged, code()), 0..4)).prop_map(
            |(generation, outcomes)| { ReplicaMerged { generation, outcomes: outcomes.into() }.into() }
        ),
        (vec((bytes(), set()), 0..4), after(), any::<u64>()).prop_map(|(records, next, damaged)| Scanned {
            records,
            next,
            damaged
        }
        .into()),
        bytes().prop_map(|json| PlanTold { json }.into()),
        bytes().prop_map(|json| OfficeTold { json }.into()),
        (any::<u64>(), bytes(), option::of(bytes())).prop_map(|(number, json, cluster)| OrderTold {
            number,
            json,
            cluster
        }
        .into()),
        bytes().prop_map(|json| EventsDocument { json }.into()),
        bytes().prop_map(|text| MetricsText { text }.into()),
        (vec(row(), 0..4), option::of(bytes())).prop_map(|(rows, cluster)| Gossiped { rows, cluster }.into()),
        failure().prop_map(Response::from),
        repair_response(),
    ]
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<u128>().prop_map(Digest)
}

fn span() -> impl Strategy<Value = Span> {
    (any::<u64>(), 0u8..=64).prop_map(|(token, bits)| Span::of(Token(token), bits))
}

fn partition() -> impl Strategy<Value = PartitionId> {
    any::<u32>().prop_map(PartitionId)
}

/// What is asked about one artifact.
fn artifact_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (store(), generation(), number(), any::<[u8; 16]>(), vec(bytes(), 0..4)).prop_map(
            |(store, generation, number, manifest, keys)| {
                let (number, manifest) = (ArtifactNumber(number), ManifestDigest(manifest));
                ArtifactGet { store, generation, number, manifest, keys: keys.into() }.into()
            }
        ),
        (store(), any::<bool>(), any::<[u8; 16]>(), number(), any::<u32>()).prop_map(
            |(store, chunk, digest, offset, bytes_max)| {
                let file = if chunk { ArtifactFile::Chunk } else { ArtifactFile::Manifest };
                ArtifactRead { store, file, digest, offset, bytes_max }.into()
            }
        ),
        (scan(), number(), any::<[u8; 16]>(), any::<u64>(), any::<u64>()).prop_map(
            |(scan, number, manifest, first, last)| {
                let Scan { store, generation, after, records_max, bytes_max, .. } = scan;
                let (number, manifest) = (ArtifactNumber(number), ManifestDigest(manifest));
                let (first, last) = (Token(first), Token(last));
                ArtifactScan {
                    store,
                    generation,
                    number,
                    manifest,
                    first,
                    last,
                    after,
                    records_max,
                    bytes_max,
                }
                .into()
            }
        ),
    ]
}

fn repair_request() -> impl Strategy<Value = Request> {
    let order = select(vec![
        AntiEntropyOrder::Start,
        AntiEntropyOrder::Stop,
        AntiEntropyOrder::Scrub,
        AntiEntropyOrder::Look,
    ]);
    prop_oneof![
        (order, option::of(text()), option::of(partition()))
            .prop_map(|(order, store, partition)| AntiEntropyControl { order, store, partition }.into()),
        (store(), generation(), vec((partition(), option::of((digest(), any::<u8>()))), 0..4))
            .prop_map(|(store, generation, sums)| TreeSums { store, generation, sums }.into()),
        (store(), generation(), vec((partition(), (span(), any::<u8>())), 0..4))
            .prop_map(|(store, generation, spans)| TreeNodes { store, generation, spans }.into()),
        (store(), generation(), vec((partition(), span()), 0..4))
            .prop_map(|(store, generation, spans)| KeyDigests { store, generation, spans }.into()),
        (store(), generation(), vec(bytes(), 0..4)).prop_map(|(store, generation, keys)| RecordsGet {
            store,
            generation,
            keys
        }
        .into()),
        (store(), generation(), partition(), any::<u64>()).prop_map(
            |(store, generation, partition, from)| RecordsPage {
                store,
                generation,
                partition,
                from: Token(from)
            }
            .into()
        ),
    ]
}

fn repair_response() -> impl Strategy<Value = Response> {
    let epoch = any::<u64>().prop_map(Epoch);
    prop_oneof![
        (
            (number(), generation()),
            vec((partition(), any::<u8>()), 0..4),
            vec(partition(), 0..4),
            vec(partition(), 0..4)
        )
            .prop_map(|(standing, differing, unready, incomplete)| {
                let (incarnation, adopted) = standing;
                let standing = AnswererState { incarnation, adopted };
                TreeSummed { standing, differing, unready, incomplete }.into()
            }),
        vec(option::of(vec(digest(), 0..4)), 0..4).prop_map(|sums| TreeNoded { sums }.into()),
        vec(vec((bytes(), digest()), 0..4), 0..4).prop_map(|keys| KeyDigested { keys }.into()),
        (epoch.clone(), vec(prop::result::maybe_err(set(), code()), 0..4))
            .prop_map(|(epoch, sets)| RecordsGot { epoch, sets }.into()),
        (epoch, vec((bytes(), set()), 0..4), option::of(any::<u64>()))
            .prop_map(|(epoch, records, next)| RecordsPaged { epoch, records, next: next.map(Token) }.into()),
    ]
}
