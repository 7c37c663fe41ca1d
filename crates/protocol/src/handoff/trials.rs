//! Random targets, random times, random nonsense: an observer that shares no code with the machine judges each step.

use proptest::prelude::*;

use super::*;

const OPTIONS: HandoffOptions = HandoffOptions {
    batch_hints_max: 3,
    batch_bytes_max: 1000,
    batches_max: 2,
    rate_min: 2_000,
    rate_max: 50_000,
    rate_step: 5_000,
    late_after: Duration::from_millis(50),
    lost_after: Duration::from_millis(500),
    pause_min: Duration::from_millis(100),
    pause_max: Duration::from_millis(3000),
    rest: Duration::from_millis(20),
    age_max: Duration::from_secs(60),
    sweep_every: Duration::from_secs(10),
};

/// What the target does with a batch.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Takes { after_ms: u64 },
    Fails { after_ms: u64, fault: Fault },
    Never,
}

/// One thing that happens in a trial.
#[derive(Clone, Debug)]
enum Happening {
    Rises,
    Falls,
    Parks {
        bytes: u64,
        moved: bool,
        aged_s: u64,
    },
    Reroutes,
    /// Time passes, in milliseconds, with everything that falls due.
    Passes(u64),
    /// The next batches meet this.
    Replies(Reply),
    /// The workers are found late, or in time.
    Asks(bool),
    /// An event that nobody asked for.
    Nonsense(HandoffEvent),
}

#[derive(Clone, Copy, Debug)]
struct Parked {
    id: u64,
    bytes: u64,
    moved: bool,
    parked_ms: u64,
}

#[derive(Clone, Debug)]
struct Flying {
    batch: BatchId,
    errand: Errand,
    ids: Vec<u64>,
    settles_at: Option<Moment>,
    sent_at: Moment,
    fault: Option<Fault>,
    /// Whether the observer has counted it as lost.
    lost: bool,
}

struct World {
    machine: Handoff,
    now: Moment,
    alive: bool,
    store: Vec<Parked>,
    parked: u64,
    /// Where the walk is, by id, and the last page.
    cursor: u64,
    page: Vec<Parked>,
    page_size: usize,
    reply: Reply,
    /// A hint that the target never takes.
    poison: Option<u64>,
    flying: Vec<Flying>,
    /// Deliveries may not begin before this, as the observer sees it.
    resume_at: Moment,
    paused_at: Moment,
    failures: u32,
    /// Bytes of deliveries since the start, with their moments.
    sent: Vec<(Moment, u64)>,
    /// Whether workers were late when they were asked last.
    pressed: bool,
    given_up: usize,
    readdressed: usize,
    delivered: usize,
    steps: usize,
}

fn at(ms: u64) -> Moment {
    Moment { nanos: ms * 1_000_000 }
}

impl World {
    fn new(page_size: usize) -> World {
        World {
            machine: Handoff::new(OPTIONS, 1, 42, at(0)),
            now: at(0),
            alive: false,
            store: Vec::new(),
            parked: 0,
            cursor: 0,
            page: Vec::new(),
            page_size,
            reply: Reply::Takes { after_ms: 1 },
            poison: None,
            flying: Vec::new(),
            resume_at: at(0),
            paused_at: at(0),
            failures: 0,
            sent: Vec::new(),
            pressed: false,
            given_up: 0,
            readdressed: 0,
            delivered: 0,
            steps: 0,
        }
    }

    fn age(&self, hint: &Parked) -> Duration {
        self.now.since(at(hint.parked_ms))
    }

    fn tell(&mut self, event: HandoffEvent) {
        self.steps += 1;
        assert!(self.steps < 200_000, "the machine does not come to rest");
        let mut actions = HandoffActions::new();
        let before = self.machine.rate();
        self.machine.step(event, self.now, &mut actions);
        let after = self.machine.rate();
        assert!(
            after <= before || !self.pressed,
            "{before} to {after} bytes per second while requests are late"
        );
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: HandoffAction) {
        match action {
            HandoffAction::ReadPage { page, first } => {
                if first {
                    self.cursor = 0;
                }
                let rest: Vec<Parked> =
                    self.store.iter().filter(|hint| hint.id >= self.cursor).copied().collect();
                self.page = rest.iter().take(self.page_size).copied().collect();
                self.cursor = self.page.last().map_or(self.cursor, |last| last.id + 1);
                let facts =
                    |hint: &Parked| HintFacts { bytes: hint.bytes, age: self.age(hint), moved: hint.moved };
                let hints = self.page.iter().map(facts).collect();
                let more = rest.len() > self.page.len();
                self.tell(HandoffEvent::PageRead { page, hints, more });
            }
            HandoffAction::Carry { batch, errand, hints } => self.carry(batch, errand, hints),
        }
    }

    fn carry(&mut self, batch: BatchId, errand: Errand, range: Range<usize>) {
        assert!(!range.is_empty() && range.end <= self.page.len(), "{range:?} of {}", self.page.len());
        assert!(range.len() <= OPTIONS.batch_hints_max);
        let hints: Vec<Parked> = self.page[range].to_vec();
        let bytes: u64 = hints.iter().map(|hint| hint.bytes).sum();
        assert!(bytes <= OPTIONS.batch_bytes_max || hints.len() == 1, "a batch of {bytes} bytes");
        let known = |flying: &&Flying| self.now.since(flying.sent_at) < OPTIONS.lost_after;
        let under_way = self.flying.iter().filter(known).count();
        assert!(under_way < OPTIONS.batches_max, "{under_way} batches are under way already");
        let late = |flying: &&Flying| self.now.since(flying.sent_at) >= OPTIONS.late_after;
        assert!(!self.flying.iter().filter(known).any(|flying| late(&flying)), "sent beside a late batch");
        for hint in &hints {
            match errand {
                Errand::Deliver => {
                    assert!(self.alive, "delivered to a target that is away");
                    assert!(!hint.moved, "delivered to a node that is no replica any more");
                    assert!(self.now >= self.resume_at, "delivered during a pause");
                }
                Errand::Readdress => assert!(hint.moved, "readdressed although the target holds the key"),
                Errand::GiveUp => {
                    let reached = self.alive && self.machine.failures() == 0;
                    assert!(!reached, "given up although it could be delivered");
                    assert!(self.age(hint) > OPTIONS.age_max, "given up too early");
                }
            }
        }
        self.pay(bytes);
        let (after, fault) = match self.reply {
            Reply::Takes { after_ms } => (Some(after_ms), None),
            Reply::Fails { after_ms, fault } => (Some(after_ms), Some(fault)),
            Reply::Never => (None, None),
        };
        let settles_at = after.map(|ms| self.now.after(Duration::from_millis(ms)));
        let ids: Vec<u64> = hints.iter().map(|hint| hint.id).collect();
        let poisoned = self.poison.is_some_and(|poison| ids.contains(&poison));
        let fault = fault.or(poisoned.then_some(Fault::Refused));
        self.flying.push(Flying { batch, errand, ids, settles_at, sent_at: self.now, fault, lost: false });
    }

    /// No span of time carries more than the greatest rate yields, a full bucket, and one batch on credit.
    fn pay(&mut self, bytes: u64) {
        self.sent.push((self.now, bytes));
        let mut sum = 0;
        for &(moment, bytes) in self.sent.iter().rev() {
            sum += bytes;
            let span = self.now.since(moment).as_secs_f64();
            let allowed = OPTIONS.rate_max as f64 * (span + 0.1) + 5000.0;
            assert!(sum as f64 <= allowed, "{sum} bytes within {span} s");
        }
    }

    /// Lets time pass, waking the machine exactly when it asks to be.
    fn pass(&mut self, until: Moment) {
        loop {
            let settles = self.flying.iter().filter_map(|flying| flying.settles_at).min();
            let next = [self.machine.deadline(), settles].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= until) else { break };
            self.now = self.now.max(next);
            let due = |flying: &Flying| flying.settles_at.is_some_and(|settles_at| settles_at <= self.now);
            match self.flying.iter().position(due) {
                Some(position) => {
                    let flying = self.flying.remove(position);
                    self.settle(flying);
                }
                None => {
                    self.note_losses();
                    self.tell(HandoffEvent::Elapsed);
                }
            }
        }
        self.now = self.now.max(until);
    }

    fn note_losses(&mut self) {
        let now = self.now;
        let is_lost = |flying: &&mut Flying| !flying.lost && now.since(flying.sent_at) >= OPTIONS.lost_after;
        let mut lost_delivery = None;
        for flying in self.flying.iter_mut().filter(is_lost) {
            flying.lost = true;
            if flying.errand == Errand::Deliver {
                lost_delivery = Some(flying.sent_at);
            }
        }
        if let Some(sent_at) = lost_delivery {
            self.note_failure(sent_at);
        }
        self.flying.retain(|flying| !flying.lost || flying.settles_at.is_some());
    }

    /// At least half of the doubled pause must pass, once for all that was under way together.
    fn note_failure(&mut self, sent_at: Moment) {
        if sent_at >= self.paused_at {
            let doubled = OPTIONS.pause_min * (1 << self.failures.min(10));
            self.resume_at = self.now.after(doubled.min(OPTIONS.pause_max) / 2);
            self.paused_at = self.now;
            self.failures += 1;
        }
    }

    fn settle(&mut self, flying: Flying) {
        let known = self.now.since(flying.sent_at) < OPTIONS.lost_after;
        let (removed, left) = match flying.fault {
            None => {
                // A batch that was lost may arrive after its hints went with another one.
                let before = self.store.len();
                self.store.retain(|hint| !flying.ids.contains(&hint.id));
                let removed = before - self.store.len();
                match flying.errand {
                    Errand::Deliver => self.delivered += removed,
                    Errand::Readdress => self.readdressed += removed,
                    Errand::GiveUp => self.given_up += removed,
                }
                (removed, flying.ids.len() - removed)
            }
            Some(Fault::Refused) if self.poison.is_some() => {
                let stays = |hint: &Parked| !flying.ids.contains(&hint.id) || Some(hint.id) == self.poison;
                self.store.retain(stays);
                self.delivered += flying.ids.len() - 1;
                (flying.ids.len() - 1, 1)
            }
            Some(_) => (0, flying.ids.len()),
        };
        if known && flying.errand == Errand::Deliver {
            match flying.fault {
                None if self.now.since(flying.sent_at) <= OPTIONS.late_after => self.failures = 0,
                Some(Fault::Overloaded | Fault::Unreachable) => self.note_failure(flying.sent_at),
                _ => {}
            }
        }
        self.tell(HandoffEvent::Settled { batch: flying.batch, removed, left, fault: flying.fault });
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Rises => {
                self.alive = true;
                self.tell(HandoffEvent::TargetRose);
            }
            Happening::Falls => {
                self.alive = false;
                self.tell(HandoffEvent::TargetFell);
            }
            Happening::Parks { bytes, moved, aged_s } => {
                let parked_ms = (self.now.nanos / 1_000_000).saturating_sub(aged_s * 1000);
                self.store.push(Parked { id: self.parked, bytes, moved, parked_ms });
                self.parked += 1;
                self.tell(HandoffEvent::Parked);
            }
            Happening::Reroutes => {
                for hint in &mut self.store {
                    hint.moved = !hint.moved;
                }
                self.tell(HandoffEvent::Rerouted);
            }
            Happening::Passes(ms) => self.pass(self.now.after(Duration::from_millis(ms))),
            Happening::Replies(reply) => self.reply = reply,
            Happening::Asks(late) => {
                let before = self.machine.rate();
                self.tell(HandoffEvent::WorkersAsked { times: if late { 2 } else { 1 } });
                self.pressed = late;
                let after = self.machine.rate();
                let expected = if late { (before / 2).max(OPTIONS.rate_min) } else { before };
                assert_eq!(after, expected);
            }
            Happening::Nonsense(event) => self.tell(event),
        }
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![Just(Fault::Unreachable), Just(Fault::Overloaded), Just(Fault::Refused)]
}

fn happening() -> impl Strategy<Value = Happening> {
    let far = 1_000_000u64..2_000_000;
    prop_oneof![
        2 => Just(Happening::Rises),
        1 => Just(Happening::Falls),
        6 => (1u64..1500, prop::bool::weighted(0.1), 0u64..3)
            .prop_map(|(bytes, moved, aged_s)| Happening::Parks { bytes, moved, aged_s }),
        1 => Just(Happening::Reroutes),
        4 => (0u64..3000).prop_map(Happening::Passes),
        1 => (0u64..200).prop_map(|after_ms| Happening::Replies(Reply::Takes { after_ms })),
        1 => (0u64..700, fault())
            .prop_map(|(after_ms, fault)| Happening::Replies(Reply::Fails { after_ms, fault })),
        1 => Just(Happening::Replies(Reply::Never)),
        2 => any::<bool>().prop_map(Happening::Asks),
        1 => (far.clone(), 0usize..9, 0usize..9).prop_map(|(batch, removed, left)| Happening::Nonsense(
            HandoffEvent::Settled { batch: BatchId(batch), removed, left, fault: None }
        )),
        1 => far.prop_map(|page| Happening::Nonsense(HandoffEvent::PageRead {
            page: PageId(page),
            hints: vec![HintFacts { bytes: 1, age: Duration::ZERO, moved: false }],
            more: true,
        })),
        1 => Just(Happening::Nonsense(HandoffEvent::Elapsed)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happened before: once the target is alive and takes what it is sent, everything reaches it.
    #[test]
    fn hints_drain_after_any_history(
        happenings in prop::collection::vec(happening(), 0..60),
        page_size in 1usize..6,
    ) {
        let mut world = World::new(page_size);
        for happening in happenings {
            world.happen(happening);
        }
        world.happen(Happening::Replies(Reply::Takes { after_ms: 1 }));
        world.happen(Happening::Rises);
        world.happen(Happening::Passes(600_000));
        prop_assert_eq!(world.store.len(), 0);
        prop_assert!(world.machine.is_done());
        prop_assert_eq!(world.machine.deadline(), None);
        prop_assert_eq!(world.given_up + world.readdressed + world.delivered, world.parked as usize);
    }

    /// A target that stays away loses nothing but what grew too old, and what is somebody else's by now.
    #[test]
    fn hints_of_a_target_that_stays_away_are_given_up_in_time(ages in prop::collection::vec(0u64..100, 1..20)) {
        let mut world = World::new(4);
        world.happen(Happening::Passes(200_000));
        for aged_s in ages {
            world.happen(Happening::Parks { bytes: 10, moved: false, aged_s });
        }
        world.happen(Happening::Passes(300_000));
        prop_assert_eq!((world.store.len(), world.delivered), (0, 0));
    }
}

fn parks(world: &mut World, count: usize, bytes: u64) {
    for _ in 0..count {
        world.happen(Happening::Parks { bytes, moved: false, aged_s: 0 });
    }
}

#[test]
fn delivery_speeds_up_while_answers_are_quick_and_slows_down_when_they_are_late() {
    let mut world = World::new(6);
    parks(&mut world, 2000, 100);
    world.happen(Happening::Rises);
    world.happen(Happening::Passes(3000));
    let quick = world.machine.rate();
    assert!(quick > 10 * OPTIONS.rate_min, "{quick} bytes per second");
    world.happen(Happening::Replies(Reply::Takes { after_ms: 300 }));
    world.happen(Happening::Passes(5000));
    assert!(world.machine.rate() < quick / 4, "{} after {quick}", world.machine.rate());
}

/// Hints took a quarter of the clients' throughput: their pace followed the target alone.
#[test]
fn hints_flow_at_the_lowest_rate_while_requests_are_late_and_all_of_them_arrive() {
    let mut world = World::new(6);
    parks(&mut world, 400, 100);
    world.happen(Happening::Rises);
    world.happen(Happening::Asks(true));
    world.happen(Happening::Passes(20_000));
    let slow = world.delivered;
    // 356 bytes each.
    assert!((100..130).contains(&slow), "{slow} within 20 s at 2000 bytes per second");
    world.happen(Happening::Asks(false));
    world.happen(Happening::Passes(5000));
    assert_eq!(world.store.len(), 0, "at full speed once requests are in time");
}

#[test]
fn holders_share_the_lowest_rate() {
    let rate = |holders| Handoff::new(OPTIONS, holders, 1, at(0)).rate();
    assert_eq!([rate(0), rate(1), rate(4), rate(u32::MAX)], [2000, 2000, 500, 1]);
}

#[test]
fn delivery_stops_at_once_when_the_target_falls_and_the_rest_is_delivered_later() {
    let mut world = World::new(6);
    parks(&mut world, 200, 500);
    world.happen(Happening::Rises);
    world.happen(Happening::Passes(400));
    let before = world.delivered;
    assert!(before > 0 && !world.store.is_empty());
    world.happen(Happening::Falls);
    // Batches under way may still be answered; nothing new is sent, which `carry` asserts.
    world.happen(Happening::Passes(9000));
    assert!(world.delivered <= before + 2 * OPTIONS.batch_hints_max);
    world.happen(Happening::Rises);
    world.happen(Happening::Passes(60_000));
    assert_eq!(world.store.len(), 0);
}

/// A hint that its target will never take once stood in the way of all behind it.
#[test]
fn a_hint_that_is_always_refused_does_not_block_the_others() {
    let mut world = World::new(2);
    world.poison = Some(0);
    parks(&mut world, 5, 100);
    world.happen(Happening::Rises);
    world.happen(Happening::Passes(10_000));
    assert_eq!(world.delivered, 4);
    assert_eq!(world.store.len(), 1);
    assert!(world.sent.len() < 30, "{} batches: it is tried again with pauses", world.sent.len());
}

#[test]
fn a_target_that_flaps_is_sent_little_and_gets_everything_in_the_end() {
    let mut world = World::new(6);
    parks(&mut world, 300, 200);
    for _ in 0..50 {
        world.happen(Happening::Rises);
        world.happen(Happening::Replies(Reply::Fails { after_ms: 3, fault: Fault::Unreachable }));
        world.happen(Happening::Passes(40));
        world.happen(Happening::Falls);
        world.happen(Happening::Passes(10));
    }
    assert!(world.sent.len() < 30, "{} batches within 2.5 s", world.sent.len());
    world.happen(Happening::Replies(Reply::Takes { after_ms: 1 }));
    world.happen(Happening::Rises);
    world.happen(Happening::Passes(120_000));
    assert_eq!(world.store.len(), 0);
}
