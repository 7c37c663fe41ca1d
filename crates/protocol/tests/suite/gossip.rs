//! Scripted lives of nodes, as one machine, or a room of machines with a network between them, sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Generation, Moment, NodeId};
use protocol::gossip::{
    DOWN_AFTER, EXCHANGE_PATIENCE, Experience, Gossip, GossipAction, GossipEvent, GossipLoad, NodeLiveness,
    ROUND, Row, Why,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn nodes(count: u32) -> Vec<NodeId> {
    (1..=count).map(NodeId).collect()
}

/// What becomes of a message on its way from the first to the second.
type Fate = Box<dyn FnMut(NodeId, NodeId) -> bool>;

/// Machines in one room: exchanges take `delay` each way unless `lost` says that they do not arrive.
struct Room {
    now: Moment,
    machines: BTreeMap<NodeId, Gossip>,
    /// Stopped without a word: their listeners are gone too when in `refusing`.
    silent: BTreeSet<NodeId>,
    refusing: BTreeSet<NodeId>,
    lost: Fate,
    seed: u64,
    announced: Vec<(Moment, NodeId, NodeId, NodeLiveness, Why)>,
    /// The announcements that people are told.
    news: Vec<(NodeId, NodeId, NodeLiveness)>,
    under_way: Vec<(Moment, Parcel)>,
}

#[derive(Clone)]
enum Parcel {
    Table { from: NodeId, to: NodeId, rows: Vec<Row> },
    Answer { from: NodeId, to: NodeId, rows: Vec<Row> },
    Refusal { by: NodeId, to: NodeId },
}

const DELAY: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_millis(1);

impl Room {
    fn new(count: u32) -> Room {
        let now = Moment::default().after(ms(1));
        let machines = nodes(count).into_iter().map(|node| (node, Gossip::start(node, 1, now))).collect();
        let mut room = Room {
            now,
            machines,
            silent: BTreeSet::new(),
            refusing: BTreeSet::new(),
            lost: Box::new(|_, _| false),
            seed: 7,
            announced: Vec::new(),
            news: Vec::new(),
            under_way: Vec::new(),
        };
        for node in nodes(count) {
            room.tell(node, GossipEvent::MembersNamed { nodes: nodes(count) });
        }
        room
    }

    fn roll(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed
    }

    fn tell(&mut self, node: NodeId, event: GossipEvent) {
        let mut actions = Vec::new();
        let asked = match &event {
            GossipEvent::TableReceived { from, .. } => Some(*from),
            _ => None,
        };
        self.machines.get_mut(&node).unwrap().step(event, self.now, &mut actions);
        for action in actions {
            self.act(node, asked, action);
        }
    }

    fn act(&mut self, node: NodeId, asked: Option<NodeId>, action: GossipAction) {
        let at = self.now.after(DELAY);
        match action {
            GossipAction::Exchange { with, rows } => {
                if (self.lost)(node, with) {
                } else if self.refusing.contains(&with) {
                    self.under_way.push((at, Parcel::Refusal { by: with, to: node }));
                } else {
                    self.under_way.push((at, Parcel::Table { from: node, to: with, rows }));
                }
            }
            GossipAction::Answer { rows } => {
                let to = asked.unwrap();
                if !(self.lost)(node, to) {
                    self.under_way.push((at, Parcel::Answer { from: node, to, rows }));
                }
            }
            GossipAction::Announce { node: about, from, to, why, news } => {
                assert_ne!(from, to);
                if news {
                    self.news.push((node, about, to));
                }
                self.announced.push((self.now, node, about, to, why));
            }
        }
    }

    fn step(&mut self) {
        self.now = self.now.after(STEP);
        let due: Vec<Parcel> = self
            .under_way
            .iter()
            .filter(|(at, _)| *at <= self.now)
            .map(|(_, parcel)| parcel.clone())
            .collect();
        self.under_way.retain(|(at, _)| *at > self.now);
        for parcel in due {
            match parcel {
                Parcel::Table { from, to, rows } if !self.silent.contains(&to) => {
                    self.tell(to, GossipEvent::TableReceived { from, rows });
                }
                Parcel::Answer { from, to, rows } if !self.silent.contains(&to) => {
                    self.tell(to, GossipEvent::AnswerReceived { from, rows });
                }
                Parcel::Refusal { by, to } if !self.silent.contains(&to) => {
                    self.tell(to, GossipEvent::Experienced { node: by, experience: Experience::Refused });
                    self.tell(to, GossipEvent::ExchangeFailed { with: by });
                }
                // A paused process reads what came meanwhile only when it goes on; it is lost here, which is worse.
                _ => {}
            }
        }
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
            if !self.silent.contains(&node) && self.machines[&node].deadline() <= self.now {
                let roll = self.roll();
                self.tell(node, GossipEvent::Elapsed { roll });
            }
        }
    }

    fn run(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        while self.now < end {
            self.step();
        }
    }

    fn state(&self, viewer: u32, of: u32) -> NodeLiveness {
        self.machines[&NodeId(viewer)].state(NodeId(of)).unwrap()
    }

    fn why(&self, viewer: u32, of: u32) -> Why {
        self.machines[&NodeId(viewer)].seen(self.now).find(|seen| seen.node == NodeId(of)).unwrap().why
    }

    fn ever(&self, about: u32, state: NodeLiveness) -> bool {
        self.announced.iter().any(|(_, _, node, to, _)| *node == NodeId(about) && *to == state)
    }
}

#[test]
fn in_peace_everybody_is_alive_to_everybody_and_stays_so() {
    let mut room = Room::new(8);
    room.run(Duration::from_secs(60));
    assert_eq!(room.announced, [], "nobody was ever doubted");
    for viewer in 1..=8 {
        for seen in room.machines[&NodeId(viewer)].seen(room.now) {
            assert_eq!((seen.state, seen.why), (NodeLiveness::Alive, Why::Beats));
            assert!(seen.row.unwrap().heartbeat > 250, "rumours keep up: {seen:?}");
        }
    }
}

/// The processes of a cluster never start at the same moment: the first one is refused by the others for a while.
#[test]
fn a_peer_that_is_late_is_no_news_but_one_that_leaves_or_never_comes_is() {
    let (me, late, never) = (NodeId(1), NodeId(2), NodeId(3));
    let mut room = Room::new(3);
    room.silent.extend([late, never]);
    room.refusing.extend([late, never]);
    room.run(ms(600));
    assert_eq!(room.state(1, 2), NodeLiveness::Suspected, "it is avoided all the same");
    room.silent.remove(&late);
    room.refusing.remove(&late);
    room.run(Duration::from_secs(5));
    assert_eq!((room.state(1, 2), room.state(1, 3)), (NodeLiveness::Alive, NodeLiveness::Down));
    let told = |room: &Room| -> Vec<(NodeId, NodeLiveness)> {
        let mine = room.news.iter().filter(|(viewer, ..)| *viewer == me);
        mine.map(|&(_, about, to)| (about, to)).collect()
    };
    assert_eq!(told(&room), [(never, NodeLiveness::Down)]);

    room.silent.insert(late);
    room.refusing.insert(late);
    room.run(ms(600));
    room.silent.remove(&late);
    room.refusing.remove(&late);
    room.run(Duration::from_secs(10));
    let all = [(never, NodeLiveness::Down), (late, NodeLiveness::Suspected), (late, NodeLiveness::Alive)];
    assert_eq!(told(&room), all);
}

#[test]
fn a_killed_process_is_suspected_by_all_in_two_seconds_and_down_soon_after() {
    let mut room = Room::new(8);
    room.run(Duration::from_secs(10));
    room.silent.insert(NodeId(3));
    room.refusing.insert(NodeId(3));
    room.run(Duration::from_secs(2));
    for viewer in [1, 2, 4, 5, 6, 7, 8] {
        assert_ne!(room.state(viewer, 3), NodeLiveness::Alive, "viewer {viewer}");
    }
    room.run(Duration::from_secs(2));
    for viewer in [1, 2, 4, 5, 6, 7, 8] {
        assert_eq!(
            (room.state(viewer, 3), room.why(viewer, 3)),
            (NodeLiveness::Down, Why::Gone),
            "viewer {viewer}"
        );
    }
}

#[test]
fn a_silent_machine_is_down_only_after_ten_seconds() {
    let mut room = Room::new(8);
    room.run(Duration::from_secs(10));
    room.silent.insert(NodeId(3));
    room.run(DOWN_AFTER - ms(500));
    assert!(!room.ever(3, NodeLiveness::Down));
    assert!(
        (1..=8).filter(|&viewer| viewer != 3).all(|viewer| room.state(viewer, 3) == NodeLiveness::Suspected)
    );
    room.run(Duration::from_secs(3));
    assert_eq!((room.state(1, 3), room.why(1, 3)), (NodeLiveness::Down, Why::SilentForLong));
}

#[test]
fn a_five_second_pause_causes_no_down_on_either_side() {
    let mut room = Room::new(5);
    for paused in 1..=5 {
        room.run(Duration::from_secs(8));
        room.silent.insert(NodeId(paused));
        room.run(Duration::from_secs(5));
        room.silent.remove(&NodeId(paused));
    }
    room.run(Duration::from_secs(5));
    for paused in 1..=5 {
        assert!(room.ever(paused, NodeLiveness::Suspected), "others noticed");
        assert!(!room.ever(paused, NodeLiveness::Down));
    }
    for viewer in 1..=5 {
        assert!(
            (1..=5).all(|of| room.state(viewer, of) == NodeLiveness::Alive),
            "all is well again for {viewer}"
        );
    }
}

#[test]
fn a_node_that_slept_does_not_suspect_the_others() {
    let mut room = Room::new(3);
    room.run(Duration::from_secs(10));
    room.silent.insert(NodeId(1));
    room.run(Duration::from_secs(30));
    room.silent.remove(&NodeId(1));
    room.announced.clear();
    room.run(Duration::from_secs(5));
    let blamed: Vec<_> = room.announced.iter().filter(|(_, viewer, ..)| *viewer == NodeId(1)).collect();
    assert!(blamed.is_empty(), "{blamed:?}");
    assert_eq!(room.state(2, 1), NodeLiveness::Alive, "and the others see it again");
}

/// The last refusal was taken for one at the moment of waking up, so that the time in between counted as refused.
#[test]
fn a_node_that_slept_does_not_take_an_old_refusal_for_a_new_one() {
    let (mut now, mut actions) = (Moment::default().after(ms(1)), Vec::new());
    let mut gossip = Gossip::start(NodeId(1), 1, now);
    gossip.step(GossipEvent::MembersNamed { nodes: nodes(2) }, now, &mut actions);
    let refused = || GossipEvent::Experienced { node: NodeId(2), experience: Experience::Refused };
    for _ in 0..3 {
        gossip.step(refused(), now, &mut actions);
        now = now.after(ms(200));
        gossip.step(GossipEvent::Elapsed { roll: 1 }, now, &mut actions);
    }
    // Nobody tries again for seconds, and all that time this node is awake.
    for _ in 0..20 {
        now = now.max(gossip.deadline());
        gossip.step(GossipEvent::Elapsed { roll: 1 }, now, &mut actions);
    }
    assert_eq!(gossip.state(NodeId(2)), Some(NodeLiveness::Suspected));
    // Then it sleeps for a moment.
    now = gossip.deadline().after(ms(500));
    gossip.step(GossipEvent::Elapsed { roll: 1 }, now, &mut actions);
    assert_eq!(gossip.state(NodeId(2)), Some(NodeLiveness::Suspected), "refused for less than half a second");
    // It is down when it goes on refusing.
    for _ in 0..5 {
        gossip.step(refused(), now, &mut actions);
        now = now.after(ms(200));
        gossip.step(GossipEvent::Elapsed { roll: 1 }, now, &mut actions);
    }
    assert_eq!(gossip.state(NodeId(2)), Some(NodeLiveness::Down));
}

/// Its heartbeat began again at nought in a release build, and each answer sent it back there: nobody would have
/// believed it any more.
#[test]
fn a_row_with_the_greatest_heartbeat_there_is_does_not_turn_a_nodes_own_back() {
    let (now, mut actions) = (Moment::default().after(ms(1)), Vec::new());
    let mut gossip = Gossip::start(NodeId(1), 1, now);
    let row = Row { heartbeat: u64::MAX, ..Row::new(NodeId(1), 1, Generation(1)) };
    for _ in 0..3 {
        gossip.step(GossipEvent::AnswerReceived { from: NodeId(2), rows: vec![row] }, now, &mut actions);
        gossip.step(GossipEvent::Elapsed { roll: 1 }, now.after(ROUND), &mut actions);
        assert_eq!(gossip.own().heartbeat, u64::MAX);
    }
}

#[test]
fn behind_a_one_way_partition_a_node_is_avoided_but_never_down() {
    let mut room = Room::new(5);
    room.run(Duration::from_secs(5));
    // What 1 sends to 2 is lost; 2 reaches 1, and both reach everybody else.
    room.lost = Box::new(|from, to| (from, to) == (NodeId(1), NodeId(2)));
    room.run(Duration::from_secs(60));
    assert_eq!((room.state(1, 2), room.why(1, 2)), (NodeLiveness::Suspected, Why::GossipUnanswered));
    assert_eq!(room.state(2, 1), NodeLiveness::Suspected, "answers of 1 do not reach it either");
    assert_eq!((room.state(3, 1), room.state(3, 2)), (NodeLiveness::Alive, NodeLiveness::Alive));
    assert!(!room.ever(1, NodeLiveness::Down) && !room.ever(2, NodeLiveness::Down), "others hear both");
    room.lost = Box::new(|_, _| false);
    room.run(Duration::from_secs(3));
    assert_eq!((room.state(1, 2), room.state(2, 1)), (NodeLiveness::Alive, NodeLiveness::Alive));
}

#[test]
fn two_halves_that_lost_sight_of_each_other_find_together_again() {
    let mut room = Room::new(6);
    room.run(Duration::from_secs(5));
    room.lost = Box::new(|from, to| (from.0 <= 3) != (to.0 <= 3));
    room.run(Duration::from_secs(30));
    assert_eq!((room.state(1, 6), room.state(6, 1)), (NodeLiveness::Down, NodeLiveness::Down));
    room.lost = Box::new(|_, _| false);
    room.run(Duration::from_secs(10));
    for viewer in 1..=6 {
        assert!((1..=6).all(|of| room.state(viewer, of) == NodeLiveness::Alive), "{viewer}");
    }
}

#[test]
fn a_node_that_stops_cleanly_has_left_and_comes_back_under_the_same_incarnation() {
    let mut room = Room::new(5);
    room.run(Duration::from_secs(10));
    room.tell(NodeId(4), GossipEvent::StopRequested);
    room.run(ms(100));
    room.silent.insert(NodeId(4));
    room.refusing.insert(NodeId(4));
    room.run(Duration::from_secs(20));
    for viewer in [1, 2, 3, 5] {
        assert_eq!((room.state(viewer, 4), room.why(viewer, 4)), (NodeLiveness::Left, Why::SaidSo));
    }
    assert!(
        !room.ever(4, NodeLiveness::Suspected) && !room.ever(4, NodeLiveness::Down),
        "nobody was alarmed"
    );
    // Heartbeats begin at nothing again; the others remember fifty of the same incarnation.
    room.machines.insert(NodeId(4), Gossip::start(NodeId(4), 1, room.now));
    room.tell(NodeId(4), GossipEvent::MembersNamed { nodes: nodes(5) });
    room.silent.clear();
    room.refusing.clear();
    room.run(Duration::from_secs(4));
    assert!([1, 2, 3, 5].iter().all(|&viewer| room.state(viewer, 4) == NodeLiveness::Alive));
}

#[test]
fn a_flapping_node_is_never_down_and_alive_when_it_settles() {
    let mut room = Room::new(5);
    room.run(Duration::from_secs(5));
    for _ in 0..20 {
        room.silent.insert(NodeId(2));
        room.run(ms(1_700));
        room.silent.remove(&NodeId(2));
        room.run(ms(700));
    }
    assert!(room.ever(2, NodeLiveness::Suspected) && !room.ever(2, NodeLiveness::Down));
    room.run(Duration::from_secs(5));
    assert!([1, 3, 4, 5].iter().all(|&viewer| room.state(viewer, 2) == NodeLiveness::Alive));
}

#[test]
fn what_requests_experience_counts_at_once_and_only_an_answer_takes_it_back() {
    for experience in [
        Experience::LinkBroke,
        Experience::Refused,
        Experience::Unreachable,
        Experience::Unanswered { waited: ms(5_000) },
    ] {
        let mut room = Room::new(3);
        room.run(Duration::from_secs(3));
        room.tell(NodeId(1), GossipEvent::Experienced { node: NodeId(2), experience });
        assert_eq!(room.state(1, 2), NodeLiveness::Suspected, "{experience:?}");
        let heartbeat = room.machines[&NodeId(2)].own().heartbeat + 10;
        let row = Row { heartbeat, ..*room.machines[&NodeId(2)].own() };
        room.tell(NodeId(1), GossipEvent::TableReceived { from: NodeId(3), rows: vec![row] });
        room.tell(NodeId(1), GossipEvent::TableReceived { from: NodeId(2), rows: vec![row] });
        assert_eq!(room.state(1, 2), NodeLiveness::Suspected, "a rumour is no answer");
        room.tell(NodeId(1), GossipEvent::Experienced { node: NodeId(2), experience: Experience::Replied });
        assert_eq!(room.state(1, 2), NodeLiveness::Alive);
    }
    let mut room = Room::new(3);
    let experience = Experience::Unanswered { waited: ms(20) };
    room.tell(NodeId(1), GossipEvent::Experienced { node: NodeId(2), experience });
    assert_eq!(room.state(1, 2), NodeLiveness::Alive, "an impatient caller proves nothing");
}

#[test]
fn a_new_process_is_not_blamed_for_what_the_one_before_did() {
    let mut room = Room::new(3);
    room.run(Duration::from_secs(3));
    room.tell(NodeId(1), GossipEvent::Experienced { node: NodeId(2), experience: Experience::Refused });
    assert_eq!(room.state(1, 2), NodeLiveness::Suspected);
    let row = Row::new(NodeId(2), 2, Generation(1));
    room.tell(NodeId(1), GossipEvent::TableReceived { from: NodeId(2), rows: vec![row] });
    assert_eq!(room.state(1, 2), NodeLiveness::Alive);
}

/// One such row, from a node that was wrong or worse, made all others hold a node for *left* that served, and nothing that
/// it said itself was newer.
#[test]
fn a_later_incarnation_that_only_others_tell_changes_no_belief() {
    let mut room = Room::new(4);
    room.run(Duration::from_secs(3));
    for _ in 0..20 {
        let row = Row { left: true, heartbeat: 9, ..Row::new(NodeId(2), u64::MAX, Generation(1)) };
        room.tell(NodeId(1), GossipEvent::TableReceived { from: NodeId(3), rows: vec![row] });
        room.run(ms(150));
    }
    assert!(room.announced.iter().all(|(_, _, about, ..)| *about != NodeId(2)), "{:?}", room.announced);
    for viewer in [1, 3, 4] {
        let row =
            room.machines[&NodeId(viewer)].seen(room.now).find(|seen| seen.node == NodeId(2)).unwrap().row;
        assert_eq!(row.unwrap().incarnation, 1, "at {viewer}");
    }
}

/// A node that starts knows no incarnations, and takes what it is told until the node itself tells it another.
#[test]
fn what_others_told_before_a_node_told_it_itself_gives_way_to_that() {
    let mut room = Room::new(3);
    let row = Row { left: true, heartbeat: 9, ..Row::new(NodeId(2), u64::MAX, Generation(1)) };
    room.tell(NodeId(1), GossipEvent::TableReceived { from: NodeId(3), rows: vec![row] });
    assert_eq!(room.state(1, 2), NodeLiveness::Left);
    room.run(Duration::from_secs(5));
    assert_eq!(room.state(1, 2), NodeLiveness::Alive);
    let row = room.machines[&NodeId(1)].seen(room.now).find(|seen| seen.node == NodeId(2)).unwrap().row;
    assert_eq!(row.unwrap().incarnation, 1);
}

/// No coordination service takes part: what the node says itself is enough.
#[test]
fn a_killed_node_that_starts_again_is_believed_by_all_within_a_second() {
    let mut room = Room::new(8);
    room.run(Duration::from_secs(5));
    room.silent.insert(NodeId(4));
    room.refusing.insert(NodeId(4));
    room.run(Duration::from_secs(20));
    assert!((1..=8).filter(|&viewer| viewer != 4).all(|viewer| room.state(viewer, 4) == NodeLiveness::Down));
    room.machines.insert(NodeId(4), Gossip::start(NodeId(4), 2, room.now));
    room.tell(NodeId(4), GossipEvent::MembersNamed { nodes: nodes(8) });
    room.silent.clear();
    room.refusing.clear();
    room.run(Duration::from_secs(1));
    for viewer in (1..=8).filter(|&viewer| viewer != 4) {
        assert_eq!(room.state(viewer, 4), NodeLiveness::Alive, "at {viewer}");
        let row =
            room.machines[&NodeId(viewer)].seen(room.now).find(|seen| seen.node == NodeId(4)).unwrap().row;
        assert_eq!(row.unwrap().incarnation, 2, "at {viewer}");
    }
}

#[test]
fn loss_alone_makes_nobody_down() {
    let mut room = Room::new(8);
    let mut seed = 99_u64;
    room.lost = Box::new(move |_, _| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % 100 < 30
    });
    room.run(Duration::from_secs(120));
    assert!(room.announced.iter().all(|(_, _, _, to, _)| *to != NodeLiveness::Down), "30% loss, two minutes");
}

#[test]
fn a_node_that_is_no_member_is_not_known_and_a_removed_one_is_forgotten() {
    let mut room = Room::new(3);
    room.run(Duration::from_secs(2));
    let stranger = Row::new(NodeId(9), 1, Generation(1));
    room.tell(NodeId(1), GossipEvent::TableReceived { from: NodeId(9), rows: vec![stranger] });
    assert_eq!(room.machines[&NodeId(1)].state(NodeId(9)), None);
    room.tell(NodeId(1), GossipEvent::MembersNamed { nodes: nodes(2) });
    room.tell(NodeId(1), GossipEvent::GenerationAdopted { generation: Generation(2) });
    assert_eq!(room.machines[&NodeId(1)].state(NodeId(3)), None);
    assert_eq!(room.machines[&NodeId(1)].own().generation, Generation(2));
}

#[test]
fn load_and_epochs_travel_with_the_rows_and_nobody_takes_anothers_epoch_for_its_own() {
    let mut room = Room::new(5);
    let load = GossipLoad { operations_per_second: 42, data_bytes: 7, links: 1 };
    room.tell(NodeId(2), GossipEvent::LoadMeasured { load });
    room.tell(NodeId(2), GossipEvent::EpochReached { epoch: 6 });
    room.run(Duration::from_secs(3));
    for viewer in [1, 3, 4, 5] {
        let row =
            room.machines[&NodeId(viewer)].seen(room.now).find(|seen| seen.node == NodeId(2)).unwrap().row;
        assert_eq!((row.unwrap().load, row.unwrap().epoch), (load, 6));
        assert_eq!(room.machines[&NodeId(viewer)].own().epoch, 0);
    }
}

#[test]
fn at_most_one_exchange_is_out_to_a_node() {
    let mut machine = Gossip::start(NodeId(1), 1, Moment::default());
    let mut now = Moment::default();
    let mut actions = Vec::new();
    let named = GossipEvent::MembersNamed { nodes: nodes(2) };
    machine.step(named, now, &mut actions);
    let mut sent = Vec::new();
    for roll in 0..50 {
        actions.clear();
        machine.step(GossipEvent::Elapsed { roll }, now, &mut actions);
        let exchanges =
            actions.iter().filter(|action| matches!(action, GossipAction::Exchange { .. })).count();
        sent.extend(std::iter::repeat_n(now, exchanges));
        now = machine.deadline();
    }
    assert!(sent.len() > 3, "it tries again");
    assert!(sent.windows(2).all(|pair| pair[1].since(pair[0]) >= EXCHANGE_PATIENCE), "{sent:?}");
    assert!(machine.deadline().since(now) <= ROUND);
}
