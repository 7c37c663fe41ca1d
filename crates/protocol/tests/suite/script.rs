//! The small language of the transcripts.
//!
//! ```text
//!   get own=n1 required=2 …      starts a get; `write` starts a write (see `Setup` for the words and defaults)
//!   n2 answers b:1               a node answers with the versions of this set; `-` is the empty set
//!   n2 stores 0 / n2 refuses 0   a node takes what was written back to it in round 0, or does not: it is overloaded
//!   n2 acknowledges              … `superseded`, when it held something newer
//!   n2 fails overloaded          a node fails; the word names the error
//!   @30                          time passes: the machine is told at each deadline on the way
//! ```
//!
//! Each line is repeated with the actions that it caused and the machine's next deadline.

use std::fmt::Write as _;
use std::time::Duration;

use model::store::Consistency;
use model::versions::Stamp;
use model::{
    Actor, Generation, Moment, NodeId, Partition, PartitionId, PreferenceList, Store, StoreName, Timestamp,
    Value, VersionSet,
};
use protocol::quorum::{
    Candidates, Get, GetAction, GetActions, GetEvent, GetOutcome, Local, Origin, QuorumOptions, ReplicaError,
    Write, WriteAction, WriteActions, WriteEvent, WriteOutcome,
};

pub(crate) const GENERATION: Generation = Generation(7);

/// Nodes 1.. as replicas, the following ones as fallbacks.
pub(crate) fn preference(replicas: u8, fallbacks: u8) -> PreferenceList {
    PreferenceList::of(&definition(replicas, 1), &partition(replicas, fallbacks))
}

/// A store with this many replicas, and the answers that gets must have.
pub(crate) fn definition(replicas: u8, reads_required: u8) -> Store {
    let consistency = Consistency { replicas, reads_required, writes_required: 1 };
    Store::new(StoreName::new("scripted").unwrap(), consistency).unwrap()
}

/// The partition of [`preference`].
pub(crate) fn partition(replicas: u8, fallbacks: u8) -> Partition {
    let nodes = (1..=u32::from(replicas + fallbacks)).map(NodeId).collect();
    Partition::settled(PartitionId(0), 0, nodes)
}

/// The set that a word like `a:2` names: actor a has written twice, the second time seeing the first.
/// `a:1+b:1` are siblings, `a:1>b:1` is b having replaced a.
pub(crate) fn set(word: &str) -> VersionSet {
    let mut set = VersionSet::default();
    if word == "-" {
        return set;
    }
    for sibling in word.split('+') {
        let mut line = VersionSet::default();
        for writes in sibling.split('>') {
            let (actor, count) = writes.split_once(':').expect("actor:count");
            for _ in 0..count.parse().unwrap() {
                line.put(stamp(actor.as_bytes()[0]), None);
            }
        }
        set.merge(&line);
    }
    set
}

/// What an actor writes: a value, or, from `x` on, a deletion.
fn stamp(actor: u8) -> Stamp {
    let value = if actor < b'x' { Value::Present("v".into()) } else { Value::Tombstone };
    let actor = Actor { node: NodeId(u32::from(actor - b'a') + 1), incarnation: 1, birth: 1 };
    Stamp { actor, timestamp: Timestamp(u64::from(actor.node.0)), expires: None, value }
}

fn show(set: &VersionSet) -> String {
    let letter = |actor: Actor| char::from(b'a' + actor.node.0 as u8 - 1);
    let versions: Vec<_> = set
        .versions()
        .iter()
        .map(|version| format!("{}:{}", letter(version.dot.actor), version.dot.count))
        .collect();
    if versions.is_empty() { "-".to_owned() } else { versions.join("+") }
}

/// Runs a transcript and returns it with what happened.
pub(crate) fn run(script: &str) -> String {
    let mut lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    let setup = Setup::parse(lines.next().expect("a transcript starts with its setup"));
    let mut stage = Stage::start(&setup);
    for line in lines {
        stage.play(line);
    }
    stage.said
}

/// The first line: `get` or `write`, then `word=value` in any order.
struct Setup {
    line: String,
    replicas: u8,
    fallbacks: u8,
    options: QuorumOptions,
    own: Option<NodeId>,
    local: Local,
    possible: bool,
    suspected: Vec<NodeId>,
    lagging: Vec<NodeId>,
    started: Moment,
}

impl Setup {
    fn parse(line: &str) -> Self {
        let options = QuorumOptions {
            required: 2,
            preferred: 0,
            sloppy: true,
            held: 0,
            spared: Default::default(),
            hedge_after: Duration::from_nanos(10),
            deadline: Moment { nanos: 100 },
            wall: Default::default(),
            generation: GENERATION,
            since: GENERATION,
        };
        let mut setup = Setup {
            line: line.to_owned(),
            replicas: 3,
            fallbacks: 2,
            options,
            own: None,
            local: Local::NotReplica,
            possible: false,
            suspected: Vec::new(),
            lagging: Vec::new(),
            started: Moment { nanos: 0 },
        };
        for word in line.split_whitespace().skip(1) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "replicas" => setup.replicas = value.parse().unwrap(),
                "fallbacks" => setup.fallbacks = value.parse().unwrap(),
                "required" => setup.options.required = value.parse().unwrap(),
                "preferred" => setup.options.preferred = value.parse().unwrap(),
                "held" => setup.options.held = value.parse().unwrap(),
                "strict" => setup.options.sloppy = false,
                "own" => setup.own = Some(node(value)),
                "applied" => setup.local = Local::Applied,
                "refused" => setup.local = Local::Refused(error(value)),
                "hedge" => setup.options.hedge_after = Duration::from_nanos(value.parse().unwrap()),
                "started" => setup.started.nanos = value.parse().unwrap(),
                "possible" => setup.possible = true,
                "suspected" => setup.suspected = value.split(',').map(node).collect(),
                "lagging" => setup.lagging = value.split(',').map(node).collect(),
                other => panic!("unknown word {other}"),
            }
        }
        setup
    }
}

fn node(word: &str) -> NodeId {
    NodeId(word.strip_prefix('n').expect("a node is n1, n2 …").parse().unwrap())
}

fn error(word: &str) -> ReplicaError {
    match word {
        "unreachable" => ReplicaError::Unreachable,
        "lost" => ReplicaError::Lost,
        "overloaded" => ReplicaError::Overloaded,
        "full" => ReplicaError::DiskFull,
        "broken" => ReplicaError::StorageFailed,
        "corrupt" => ReplicaError::Corrupt,
        "stale" => ReplicaError::StaleGeneration { generation: Generation(GENERATION.0 + 1) },
        "confused" => ReplicaError::StaleGeneration { generation: GENERATION },
        other => panic!("unknown error {other}"),
    }
}

#[allow(clippy::large_enum_variant, reason = "one per script")]
enum Machine {
    Get(Get),
    Write(Write),
}

struct Stage {
    machine: Machine,
    now: Moment,
    /// Whether the caller has its answer, or begins again.
    answered: bool,
    said: String,
}

impl Stage {
    fn start(setup: &Setup) -> Self {
        let preference = preference(setup.replicas, setup.fallbacks);
        let candidates =
            Candidates { preference: &preference, suspected: &setup.suspected, lagging: &setup.lagging };
        let now = setup.started;
        let mut said = Vec::new();
        let machine = if setup.line.starts_with("get") {
            let mut actions = GetActions::new();
            let get = Get::start(candidates, setup.own, setup.options, now, &mut actions);
            said.extend(actions.iter().map(show_get));
            Machine::Get(get)
        } else {
            let own = setup.own.expect("a write has a coordinator");
            let origin = Origin { own, local: setup.local, possible: setup.possible };
            let mut actions = WriteActions::new();
            let write = Write::start(candidates, origin, setup.options, now, &mut actions);
            said.extend(actions.iter().map(show_write));
            Machine::Write(write)
        };
        let mut stage = Stage { machine, now, answered: false, said: String::new() };
        stage.tell(&setup.line, said);
        stage
    }

    fn play(&mut self, line: &str) {
        if let Some(time) = line.strip_prefix('@') {
            let end = Moment { nanos: time.parse().unwrap() };
            while let Some(deadline) = self.deadline().filter(|&deadline| deadline <= end) {
                self.now = deadline;
                let said = self.elapse();
                self.tell(&format!("@{}", deadline.nanos), said);
            }
            self.now = end;
            return;
        }
        let mut words = line.split_whitespace();
        let who = node(words.next().unwrap());
        let what = words.next().unwrap();
        let rest = words.next();
        let said = match &mut self.machine {
            Machine::Get(get) => {
                let event = match what {
                    "answers" => {
                        GetEvent::Answered { node: who, generation: GENERATION, set: set(rest.unwrap()) }
                    }
                    "stores" => GetEvent::Stored {
                        node: who,
                        generation: GENERATION,
                        round: rest.unwrap().parse().unwrap(),
                    },
                    "refuses" => {
                        let round = rest.unwrap().parse().unwrap();
                        GetEvent::NotStored { node: who, round, error: ReplicaError::Overloaded }
                    }
                    _ => GetEvent::Failed { node: who, error: error(rest.unwrap()) },
                };
                let mut actions = GetActions::new();
                get.step(event, self.now, &mut actions);
                actions.iter().map(show_get).collect()
            }
            Machine::Write(write) => {
                let superseded = rest == Some("superseded");
                let event = match what {
                    "acknowledges" => {
                        WriteEvent::Acknowledged { node: who, generation: GENERATION, superseded }
                    }
                    _ => WriteEvent::Failed { node: who, error: error(rest.unwrap()) },
                };
                let mut actions = WriteActions::new();
                write.step(event, self.now, &mut actions);
                actions.iter().map(show_write).collect()
            }
        };
        self.tell(line, said);
    }

    fn elapse(&mut self) -> Vec<String> {
        match &mut self.machine {
            Machine::Get(get) => {
                let mut actions = GetActions::new();
                get.step(GetEvent::Elapsed, self.now, &mut actions);
                actions.iter().map(show_get).collect()
            }
            Machine::Write(write) => {
                let mut actions = WriteActions::new();
                write.step(WriteEvent::Elapsed, self.now, &mut actions);
                actions.iter().map(show_write).collect()
            }
        }
    }

    fn deadline(&self) -> Option<Moment> {
        match &self.machine {
            Machine::Get(get) => get.deadline(),
            Machine::Write(write) => write.deadline(),
        }
    }

    fn tell(&mut self, line: &str, said: Vec<String>) {
        let ends = ["answer", "fail", "done", "indeterminate", "refresh"];
        self.answered |= said.iter().any(|said| ends.iter().any(|end| said.starts_with(end)));
        let waits = match &self.machine {
            Machine::Get(get) => get.is_unanswered(),
            Machine::Write(write) => write.is_unanswered(),
        };
        assert_eq!(waits, !self.answered, "a caller waits for its one answer: {line}");
        let until = self.deadline().map_or("end".to_owned(), |deadline| format!("until {}", deadline.nanos));
        writeln!(self.said, "{line}  ({until})").unwrap();
        said.iter().for_each(|said| writeln!(self.said, "    {said}").unwrap());
    }
}

fn show_errors(errors: &[(NodeId, ReplicaError)]) -> String {
    errors.iter().map(|(node, error)| format!(" {node}: {error}.")).collect()
}

fn show_get(action: &GetAction) -> String {
    match action {
        GetAction::Fetch { node } => format!("fetch {node}"),
        GetAction::WriteBack { node, round, set } => {
            format!("write back to {node} in round {round}: {}", show(set))
        }
        GetAction::Repair { node, set } => format!("repair {node} with {}", show(set)),
        GetAction::Refresh { generation } => format!("refresh to {}", generation.0),
        GetAction::Answer(GetOutcome::Done { set, answered, sloppy }) => {
            format!("answer {} from {answered}{}", show(set), if *sloppy { ", sloppy" } else { "" })
        }
        GetAction::Answer(GetOutcome::Failed { reason, errors }) => {
            format!("fail {reason:?}{}", show_errors(errors))
        }
    }
}

fn show_write(action: &WriteAction) -> String {
    match action {
        WriteAction::Merge { node } => format!("merge at {node}"),
        WriteAction::SendHint { holder, target } => format!("hint at {holder} for {target}"),
        WriteAction::ParkHint { target } => format!("park for {target}"),
        WriteAction::Refresh { generation, possible } => {
            format!("refresh to {}{}", generation.0, if *possible { ", possible" } else { "" })
        }
        WriteAction::Answer(WriteOutcome::Done { acks, sloppy, superseded }) => {
            let sloppy = if *sloppy { ", sloppy" } else { "" };
            format!("done with {acks}{sloppy}{}", if *superseded { ", superseded" } else { "" })
        }
        WriteAction::Answer(WriteOutcome::Failed { required, errors }) => {
            format!("failed, required {required}.{}", show_errors(errors))
        }
        WriteAction::Answer(WriteOutcome::Indeterminate { acks, required, errors }) => {
            format!("indeterminate with {acks} of {required}.{}", show_errors(errors))
        }
    }
}
