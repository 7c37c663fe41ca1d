//! The report of a node: its JSON, which `-o json` shows, and how it is read.

use bytes::{Bytes, BytesMut};
use expect_test::expect_file;
use model::*;
use proptest::prelude::*;
use protocol::gossip::NodeLiveness;
use protocol::report::*;
use wire::DecodeError;
use wire::messages::*;

fn name(name: &str) -> StoreName {
    StoreName::new(name).unwrap()
}

fn status() -> Status {
    let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let store = StoreStatus::empty(name("carts"), consistency, Resolver::Siblings);
    let hints = HintsHeld {
        target: NodeId(3),
        hints: 5,
        state: HintsState::Holding,
        hints_per_second: 0,
        rate_bytes_per_second: 1 << 20,
        failures: 1,
        delivered_total: 7,
        readdressed_total: 0,
        expired_total: 0,
    };
    let chore = ChoreReport {
        chore: "bring in".to_owned(),
        state: ChoreState::Failed,
        seconds: 1.5,
        seconds_left: Some(3.25),
        rounds_total: 12,
        failures: 2,
        panics: 1,
        panics_total: 1,
        last_error: Some(ChoreError { error: "the disk is full".to_owned(), seconds_ago: 1.5 }),
    };
    Status {
        cluster: "dev".to_owned(),
        version: "0.1.0".to_owned(),
        engine: "log".to_owned(),
        uptime_s: 60,
        place: Installation { process_id: 7, data_directory: "/data".to_owned(), ..Default::default() },
        disk_available_bytes: 1 << 30,
        hints: vec![hints],
        collection: Some(CollectionReport { waits_for: Some(NodeId(3)), ..Default::default() }),
        chores: vec![chore],
        stores: vec![StoreStatus { records: 300, live_bytes: 65536, ..store }],
        ..Status::default()
    }
}

fn moves() -> RebalanceReport {
    let merged = [(name("carts"), [NodeId(1), NodeId(2)].into())].into();
    let (partition, generation) = (PartitionId(513), Generation(7));
    let entered = PartitionEntered { partition, generation, whole: true, merged, records: 300, bytes: 65536 };
    let leftover = Leftover { store: name("carts"), partition: PartitionId(2), records: 5 };
    RebalanceReport { adopted: Generation(8), entered: vec![entered], leftovers: vec![leftover], hints: 3 }
}

fn seen() -> NodeSeen {
    NodeSeen {
        node: NodeId(3),
        zone: Some(Zone("a".to_owned())),
        native: Some("10.0.0.3:7401".to_owned()),
        state: NodeLiveness::Suspected,
        why: "missed heartbeats".to_owned(),
        phi: 8.25,
        heard_ms_ago: 1200,
        heard: true,
        said: NodeLoad { incarnation: Some(5), generation: Some(Generation(8)), ..NodeLoad::default() },
    }
}

fn repair() -> RepairReport {
    let outcome = Comparison { complete: true, partitions: 64, ..Comparison::default() };
    let only = PartitionTree {
        partition: PartitionId(7),
        records: Some(4),
        incomplete: false,
        compared_with: Some(vec![NodeId(2)]),
    };
    let run = ScrubRun {
        store: "carts".to_owned(),
        seconds: 1.5,
        partitions: 8,
        partitions_done: 8,
        records: 700,
        bytes: 2048,
        corrupt_records: 1,
        wrong_leaves: 0,
    };
    RepairReport {
        stopped_parts: vec![RepairPart { store: Some("carts".to_owned()), partition: None }],
        period_s: 600,
        running: Some(Comparing {
            peer: NodeId(2),
            store: "carts".to_owned(),
            seconds: 4.0,
            partitions: 64,
            partitions_done: 16,
            keys_left: 30,
            progress: Comparison { keys_differing: 500, ..Comparison::default() },
        }),
        peers: vec![Compared { peer: NodeId(2), seconds_ago: 12.5, took_ms: 3.25, outcome }],
        trees: vec![StoreTrees {
            store: name("carts"),
            trees: 1,
            doubtful: 0,
            tree_bytes: 4096,
            repaired_records_total: 2,
            only: Some(only),
        }],
        scrub: Scrub { last_asked: Some(Scrubbed { seconds_ago: 12.0, run }), ..Scrub::default() },
        refill: Some(RefillReport {
            partitions: 64,
            partitions_left: 48,
            seconds_left: Some(12),
            stores: vec![StoreRefill { store: name("carts"), partitions: 64, partitions_left: 48 }],
            ..RefillReport::default()
        }),
        ..RepairReport::default()
    }
}

fn artifacts() -> ArtifactsReport {
    let listed = ArtifactProgress {
        store: name("words"),
        number: ArtifactNumber(7),
        manifest: ManifestDigest([0xab; 16]),
        parent: Some(ArtifactNumber(6)),
        serving_ms: Some(90),
        state: ArtifactState::Staged,
        whole_under: Generation(8),
        bytes: 1024,
        bytes_total: 1024,
        bytes_fetched: 512,
        bytes_fetched_as_deltas: 0,
        chunks: 2,
        chunks_total: 2,
        error: None,
        trouble: None,
    };
    let lacking = ArtifactProgress {
        number: ArtifactNumber(8),
        state: ArtifactState::Failed,
        error: Some("no room".to_owned()),
        trouble: Some(ArtifactTrouble::Room),
        ..listed.clone()
    };
    ArtifactsReport {
        listed: vec![listed, lacking],
        fetching: Fetching { chunks_corrupt: 1, ..Fetching::default() },
        scrub: ArtifactScrub { files: 9, files_done: 2, seconds_ago: Some(60), ..ArtifactScrub::default() },
    }
}

fn load() -> LoadReport {
    let work = WorkDone { gets: 900, puts: 70, stamped: 5, own_gets: 80 };
    LoadReport {
        uptime_ms: 60_250,
        ran_us: Some(1_500_000),
        waited_us: Some(250_000),
        process_us: Some(1_900_000),
        workers: 2,
        processors: 1.5,
        coordinated_gets: 300,
        coordinated_puts: 40,
        own_stamped: 3,
        disk_available_bytes: Some(1 << 30),
        disk_total_bytes: Some(1 << 32),
        partitions: vec![PartitionLoad {
            partition: PartitionId(513),
            work,
            bytes: 65536,
            middle: Some(Middle { at: 1 << 60, permille: 480 }),
        }],
        rest: WorkDone { gets: 100, ..WorkDone::default() },
        rest_partitions: 12,
        rest_bytes: 4096,
    }
}

fn report() -> Report {
    Report {
        status: Some(status()),
        moves: Some(moves()),
        nodes: Some(vec![seen()]),
        repair: Some(repair()),
        artifacts: Some(artifacts()),
        load: Some(load()),
        keys: Some(vec![HotKey {
            partition: PartitionId(513),
            key: "cart:7".to_owned(),
            noted: 61,
            of: 100,
        }]),
        ..Report::new(NodeId(2), 0x18f_0000_0000, WallMillis(1_763_754_000_123), Generation(8))
    }
}

#[test]
fn a_report_in_json_is_pinned_and_read_as_it_was_written() {
    let report = report();
    let json = serde_json::to_string_pretty(&report).unwrap();
    expect_file!["report.json"].assert_eq(&(json.clone() + "\n"));
    assert_eq!(ReportGot { json: json.into() }.report(), Ok(report.clone()));
    assert_eq!(ReportGot::of(&report).report(), Ok(report));
}

#[test]
fn parts_that_were_not_asked_for_are_not_there() {
    let report = Report::new(NodeId(2), 5, WallMillis(7), Generation(8));
    let got = ReportGot::of(&report);
    assert_eq!(got.json, r#"{"node":2,"incarnation":5,"at_ms":7,"generation":8}"#);
    assert_eq!(got.report(), Ok(report));
    assert!((Parts::STATUS | Parts::MOVES).has(Parts::MOVES) && !Parts::STATUS.has(Parts::MOVES));
}

#[test]
fn what_a_later_version_adds_is_skipped_and_what_is_no_report_is_refused() {
    let read = |json: &'static str| ReportGot { json: Bytes::from_static(json.as_bytes()) }.report();
    let later = r#"{"node":2,"incarnation":5,"at_ms":7,"generation":8,"weather":{"rain":true},
        "moves":{"adopted":8,"entered":[],"leftovers":[],"hints":0,"speed":9}}"#;
    assert_eq!(read(later).unwrap().moves.unwrap().adopted, Generation(8));
    let ReportGot { json } = ReportGot::of(&report());
    let dreams =
        String::from_utf8(json.to_vec()).unwrap().replacen(r#""state":"failed""#, r#""state":"dreaming""#, 1);
    let read_on = ReportGot { json: dreams.into() }.report().unwrap().status.unwrap();
    assert_eq!(read_on.chores[0].state, ChoreState::Unknown);
    for wrong in ["", "[]", "{}", r#"{"node":2,"incarnation":5,"at_ms":7,"generation":8,"status":{}}"#] {
        assert!(matches!(read(wrong), Err(DecodeError::Report { .. })), "{wrong}");
    }
}

#[test]
fn what_a_node_says_of_moves_is_what_steps_are_decided_by() {
    let report = report();
    let facts = report.facts().unwrap();
    assert_eq!(
        (facts.incarnation, facts.adopted),
        (Some(report.incarnation), Some((report.incarnation, Generation(8))))
    );
    let entered = &facts.entered[&PartitionId(513)];
    assert_eq!((entered.incarnation, entered.whole), (report.incarnation, true));
    let told = &moves().entered[0];
    assert_eq!(&PartitionEntered::of(PartitionId(513), entered.clone(), (300, 65536)), told);
    assert_eq!(Report { moves: None, ..report }.facts(), None);
}

#[test]
fn only_artifacts_that_are_staged_are_held() {
    let report = report();
    let staged = report.staged();
    let said = protocol::artifacts::PushReport {
        node: NodeId(2),
        generation: Generation(8),
        number: ArtifactNumber(7),
        manifest: ManifestDigest([0xab; 16]),
    };
    assert_eq!(staged, [(name("words"), said)]);
    assert!(report.seen(NodeId(3)).is_some() && report.seen(NodeId(1)).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A node says anything; whatever is read can be written and read again.
    #[test]
    fn a_damaged_report_is_read_or_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut json = BytesMut::from(&ReportGot::of(&report()).json[..]);
        for (index, byte) in damage {
            let position = index.index(json.len());
            json[position] = byte;
        }
        if cut {
            json.truncate(end.index(json.len()));
        }
        if let Ok(read) = (ReportGot { json: json.freeze() }).report() {
            prop_assert!(ReportGot::of(&read).report().is_ok());
        }
    }
}
