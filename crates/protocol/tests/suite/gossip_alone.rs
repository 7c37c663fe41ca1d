//! One machine of the rumours, told event by event and at exact moments.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{Generation, Moment, NodeId};
use protocol::gossip::{
    DOWN_AFTER, EXCHANGES_MISSED_MAX, Experience, Gossip, GossipAction, GossipEvent, NodeLiveness, ROUND,
    Row, Why,
};

const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

/// A machine and the time that it is told.
struct Alone {
    gossip: Gossip,
    now: Moment,
}

impl Alone {
    /// Node 1 of a cluster of this many.
    fn of(nodes: u32) -> Alone {
        let now = Moment::default().after(Duration::from_secs(1));
        let mut alone = Alone { gossip: Gossip::start(ME, 1, now), now };
        alone.tell(GossipEvent::MembersNamed { nodes: (1..=nodes).map(NodeId).collect() });
        alone
    }

    fn tell(&mut self, event: GossipEvent) -> Vec<GossipAction> {
        let mut actions = Vec::new();
        self.gossip.step(event, self.now, &mut actions);
        actions
    }

    /// The next round, in time.
    fn round(&mut self, roll: u64) -> Vec<GossipAction> {
        self.now = self.gossip.deadline();
        self.tell(GossipEvent::Elapsed { roll })
    }

    fn experienced(&mut self, experience: Experience) -> Vec<GossipAction> {
        self.tell(GossipEvent::Experienced { node: OTHER, experience })
    }

    /// What is believed of the other node, why, and for how long it has been silent.
    fn seen(&self) -> (NodeLiveness, Why, Duration) {
        let seen = self.gossip.seen(self.now).find(|seen| seen.node == OTHER).unwrap();
        (seen.state, seen.why, seen.silence)
    }
}

/// Random numbers for rounds, the same each time.
fn rolls() -> impl Iterator<Item = u64> {
    (1..).map(|step: u64| step.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn partners(actions: &[GossipAction]) -> Vec<NodeId> {
    let with = |action: &GossipAction| {
        if let GossipAction::Exchange { with, .. } = action { Some(*with) } else { None }
    };
    actions.iter().filter_map(with).collect()
}

#[test]
fn rounds_come_up_to_a_tenth_early_or_late_so_that_nodes_do_not_beat_together() {
    let mut alone = Alone::of(2);
    let beats: Vec<Duration> = rolls()
        .take(200)
        .map(|roll| {
            alone.round(roll);
            alone.gossip.deadline().since(alone.now)
        })
        .collect();
    assert!(beats.iter().all(|&beat| (ROUND * 9 / 10..ROUND * 11 / 10).contains(&beat)), "{beats:?}");
    assert!(
        beats.iter().any(|&beat| beat < ROUND * 95 / 100)
            && beats.iter().any(|&beat| beat > ROUND * 105 / 100)
    );
}

#[test]
fn each_round_asks_one_living_peer_and_by_and_by_all_of_them() {
    let mut alone = Alone::of(6);
    let mut asked = BTreeSet::new();
    for roll in rolls().take(100) {
        let with = partners(&alone.round(roll));
        assert_eq!(with.len(), 1, "{with:?}");
        asked.insert(with[0]);
        alone.tell(GossipEvent::AnswerReceived { from: with[0], rows: Vec::new() });
        // Nobody has become silent meanwhile.
        for node in (2..=6).map(NodeId) {
            alone.tell(GossipEvent::Experienced { node, experience: Experience::Replied });
        }
    }
    assert_eq!(asked, (2..=6).map(NodeId).collect());
}

#[test]
fn a_node_that_is_down_is_asked_again_in_one_round_of_ten() {
    let mut alone = Alone::of(2);
    while alone.gossip.state(OTHER) != Some(NodeLiveness::Down) {
        if !partners(&alone.round(7)).is_empty() {
            alone.tell(GossipEvent::ExchangeFailed { with: OTHER });
        }
    }
    let asked = rolls().take(100).filter(|&roll| {
        let asked = !partners(&alone.round(roll)).is_empty();
        alone.tell(GossipEvent::ExchangeFailed { with: OTHER });
        asked
    });
    assert_eq!(asked.count(), 10);
}

#[test]
fn rounds_alone_notice_a_silence_and_tell_of_it() {
    let mut alone = Alone::of(2);
    alone.experienced(Experience::Replied);
    let (heard, mut told) = (alone.now, Vec::new());
    while alone.now.since(heard) < DOWN_AFTER {
        for action in alone.round(7) {
            if let GossipAction::Announce { node: OTHER, to, why, .. } = action {
                told.push((to, why));
            }
        }
    }
    let (first, last) = (told[0], told[told.len() - 1]);
    assert_eq!(
        (first.0, last),
        (NodeLiveness::Suspected, (NodeLiveness::Down, Why::SilentForLong)),
        "{told:?}"
    );
}

#[test]
fn a_round_that_is_late_by_more_than_a_round_counts_nobodys_silence() {
    for (late, forgiven) in [(ROUND, Duration::ZERO), (ROUND + Duration::from_nanos(1), ROUND)] {
        let mut alone = Alone::of(2);
        alone.experienced(Experience::Replied);
        let heard = alone.now;
        alone.round(7);
        alone.now = alone.gossip.deadline().after(late);
        alone.tell(GossipEvent::Elapsed { roll: 7 });
        let silent = alone.now.since(heard);
        let expected = if forgiven.is_zero() { silent } else { silent - late };
        assert_eq!(alone.seen().2, expected, "late by {late:?}");
    }
}

#[test]
fn a_table_is_answered_with_what_is_known_better_and_nothing_else() {
    let mut alone = Alone::of(3);
    alone.round(7);
    let own = *alone.gossip.own();
    let known = Row { heartbeat: 5, ..Row::new(OTHER, 1, Generation(1)) };
    let mut answer = |rows: Vec<Row>| match &alone.tell(GossipEvent::TableReceived { from: OTHER, rows })[0] {
        GossipAction::Answer { rows } => rows.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(answer(vec![known]), [own], "this node's own row is missing there");
    assert_eq!(answer(vec![own, known]), [], "both know the same");
    assert_eq!(answer(vec![own, Row { heartbeat: 4, ..known }]), [known]);
    assert_eq!(
        alone.gossip.own().heartbeat,
        own.heartbeat,
        "a node that hears its own row has missed nothing"
    );
}

#[test]
fn a_node_is_suspected_after_enough_unanswered_exchanges_and_not_one_sooner() {
    let mut alone = Alone::of(2);
    let miss = |alone: &mut Alone| {
        while partners(&alone.round(7)).is_empty() {}
        alone.tell(GossipEvent::ExchangeFailed { with: OTHER });
        alone.experienced(Experience::Heard);
    };
    for missed in 1..EXCHANGES_MISSED_MAX {
        miss(&mut alone);
        assert_eq!(alone.seen().0, NodeLiveness::Alive, "{missed} missed");
    }
    miss(&mut alone);
    let (state, why, _) = alone.seen();
    assert_eq!((state, why), (NodeLiveness::Suspected, Why::GossipUnanswered));
    alone.experienced(Experience::LinkBroke);
    miss(&mut alone);
    assert_eq!(alone.seen().1, Why::LinkBroke, "what requests met says more");
}

/// A clean restart keeps the incarnation.
#[test]
fn a_node_that_is_back_after_it_has_left_is_not_blamed_for_what_its_last_process_did() {
    let mut alone = Alone::of(3);
    let row = |heartbeat, left| Row { heartbeat, left, ..Row::new(OTHER, 1, Generation(1)) };
    let learn = |alone: &mut Alone, row| {
        alone.tell(GossipEvent::TableReceived { from: NodeId(3), rows: vec![row] });
        alone.seen().0
    };
    learn(&mut alone, row(1, false));
    alone.experienced(Experience::Refused);
    assert_eq!(learn(&mut alone, row(2, false)), NodeLiveness::Suspected, "a rumour is no answer");
    assert_eq!(learn(&mut alone, row(3, true)), NodeLiveness::Left);
    assert_eq!(learn(&mut alone, row(4, false)), NodeLiveness::Alive);
}

#[test]
fn a_node_that_is_said_to_have_started_again_is_asked_in_the_next_round() {
    let mut alone = Alone::of(20);
    for node in 2..=20 {
        let row = Row::new(NodeId(node), 1, Generation(1));
        alone.tell(GossipEvent::AnswerReceived { from: NodeId(node), rows: vec![row] });
    }
    let later = Row::new(NodeId(7), 2, Generation(1));
    alone.tell(GossipEvent::TableReceived { from: OTHER, rows: vec![later] });
    let asked = partners(&alone.round(3));
    assert_eq!(asked[0], NodeId(7));
    assert_eq!(asked.len(), 2, "beside the one that is drawn");
    alone.tell(GossipEvent::AnswerReceived { from: NodeId(7), rows: vec![later] });
    let known = |alone: &Alone| {
        alone.gossip.seen(alone.now).find(|seen| seen.node == NodeId(7)).unwrap().row.unwrap().incarnation
    };
    assert_eq!(known(&alone), 2);
    let before = Row { heartbeat: 99, ..Row::new(NodeId(7), 1, Generation(1)) };
    alone.tell(GossipEvent::TableReceived { from: NodeId(7), rows: vec![before] });
    assert_eq!(known(&alone), 2, "a message of the process before comes late");
}

#[test]
fn states_have_the_names_that_programs_read_and_every_reason_reads_differently() {
    let states = [NodeLiveness::Alive, NodeLiveness::Suspected, NodeLiveness::Down, NodeLiveness::Left];
    assert_eq!(states.map(NodeLiveness::name), ["alive", "suspected", "down", "left"]);
    let whys = [
        Why::Beats,
        Why::NotHeardYet,
        Why::Silent,
        Why::LinkBroke,
        Why::Refused,
        Why::Unreachable,
        Why::Unanswered,
        Why::GossipUnanswered,
        Why::Gone,
        Why::SilentForLong,
        Why::SaidSo,
    ];
    let texts: BTreeSet<String> = whys.iter().map(Why::to_string).collect();
    assert_eq!(texts.len(), whys.len(), "{texts:?}");
}
