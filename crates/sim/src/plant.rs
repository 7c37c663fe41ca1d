//! Bugs planted on purpose, to prove that each judge can convict.
//!
//! They live in wrappers around the ports, so production code has no path for them.

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A disk that says a sync is done and does nothing.
    LyingDisk,
    /// An engine that now and then drops a record instead of answering with it.
    ForgetfulEngine,
    /// An engine that sometimes answers a get with the record before the last.
    StaleEngine,
    /// A network that changes a byte of a value.
    TamperingNetwork,
    /// A node that comes back with an old identity and goes on stamping under it.
    RewoundIdentity,
    /// A client that hands back no context where it says that it does.
    DroppedContext,
    /// A client that overwrites blindly where it says that it read before.
    ForgottenRead,
    /// An engine of hints that says a hint is removed and keeps it.
    HoardedHints,
    /// Stores that promise monotonic reads and answer without writing back.
    HastyReads,
    /// Engines that forget a deletion as soon as it is stored, without asking anybody.
    HastyCollection,
    /// Nodes that keep nothing of a value once it has expired by their own clock, however wrong that is.
    HastyReaping,
    /// Nodes that never compare with each other, and have no room for hints.
    IdleRepair,
    /// Nodes that compare and overlook the records of every other leaf, and have no room for hints.
    OverlookedLeaves,
    /// An engine that answers with a damaged record as if its checksum held.
    UncheckedReads,
    /// Engines that say a write is durable when it is in memory.
    AcksEarly,
    /// Engines that say a write is durable when the one before it is.
    AcksOneBehind,
    /// Engines of hints that say a hint is durable when it is in memory.
    HintsAckedEarly,
    /// A disk that says the names of a directory are synced and does nothing.
    LyingDirectories,
    /// A disk that says hints are synced and does nothing.
    LyingHints,
    /// A disk that says the file of the identity is synced and does nothing.
    LyingIdentity,
    /// Engines of hints that remove a hint as soon as it is read to be delivered.
    HintsDropped,
    /// Nodes that keep hints in memory.
    HintsInMemory,
    /// Engines of hints that park a hint for another target.
    HintsMisaddressed,
    /// Engines that now and then acknowledge a write and keep what was there.
    LostWrites,
    /// Engines that now and then put back the record before.
    OlderOverNewer,
    /// Engines that now and then answer with the record of another key.
    CrossedKeys,
    /// Engines that now and then show a writer the record before the last.
    StaleStamps,
    /// Engines that do not find the keys whose time has come.
    OverlookedExpiry,
    /// Engines that do not say that their records can be damaged.
    UnrepairableEngine,
    /// Stores whose definition asks for one acknowledgement fewer.
    TooFewWrites,
    /// Stores whose definition asks for one answer fewer.
    TooFewReads,
    /// Stores whose definition lets fallbacks answer.
    SecretlySloppy,
    /// A store of siblings that keeps the last write.
    WrongResolver,
    /// A network that gives hints another target.
    HintsRedirected,
    /// A network that turns refusals of merges into acknowledgements.
    ForgedAnswers,
    /// A network that puts an older value into a newer version of a key.
    OldValues,
    /// A network that takes the keys out of what nodes are asked to confirm before a deletion is forgotten.
    HeedlessConfirms,
    /// A network that gives what arrives the newest collection epoch, whenever it was read.
    LateTags,
    /// A network that says of a key which a node is refilling that there is nothing.
    EmptyForRefilling,
    /// A network that says that hash trees are equal.
    EqualSums,
    /// A disk that forgets the file of the collection epoch.
    ForgottenEpoch,
    /// A disk that forgets the list of what is refilled.
    ForgottenRefill,
    /// A disk that says the output of compactions is synced and does nothing.
    LyingCompaction,
    /// A coordination service that forgets with which disks nodes came back.
    ForgottenMembers,
    /// Engines that keep a value's expiry when it is told to live for ever.
    PersistIgnored,
    /// A client that says a write has a condition, and sends none.
    ConditionsIgnored,
    /// A plain client that says a change of an expiry has a condition, or that a value keeps its own, and says nothing.
    LifetimesIgnored,
    /// Engines that take a value of no bytes for none.
    EmptyIsNothing,
    /// A network that turns an overloaded node's refusal of a whole batch into an acknowledgement.
    CrowdedIsDone,
    /// A client that says how many replicas must answer, and leaves it to the store.
    OwnQuorumIgnored,
    /// A network that says of nodes that enter a partition that they have merged with everybody.
    MergesClaimed,
    /// A network that says that who enters or leaves a partition holds the same as who holds it.
    MovesUncompared,
    /// Documents by which requests from before a cut are still accepted.
    CutsUnannounced,
    /// Documents by which a store has other numbers of replicas at once.
    NumbersAtOnce,
    /// Sessions with the coordination service that set documents whatever their version is.
    VersionsIgnored,
    /// Sessions with the coordination service that read of a node's past what was before its last start, also when they
    /// have written since.
    PastHidden,
    /// A network that asks replicas for the artifact that is served, whatever one a request names.
    ServedForAsked,
    /// A client that begins a request of many keys again in part, by another document.
    BegunInParts,
    /// A network that says *absent* where a node does not hold what it is asked for.
    AbsentForElsewhere,
    /// A network that says of nodes that they hold all artifacts that are listed.
    StagedClaimed,
    /// A user's order that names what the source has, whatever was built.
    DigestsUncompared,
    /// Nodes that read no file of an artifact that no request reads.
    ArtifactsUnscrubbed,
    /// A client that says of all answers that a fallback stood in.
    AllCalledSloppy,
    /// A client that asks one replica whether a key is there.
    AbsentByOne,
    /// A network that says *nothing found* in place of a replica that refuses to read.
    RefusalIsAbsence,
    /// A client that takes *unavailable* for *not found*.
    UnavailableIsAbsent,
    /// A network that takes the conditions out of puts.
    ConditionsDropped,
    /// A network that tells plain clients 0 where a node says 1.
    DoorsDenyKeys,
    /// Sessions with the coordination service that read of each plan that it ended a day ago.
    EndedLongAgo,
    /// A network that refuses connections to processes that stand still, as if nobody listened.
    StoppedRefuse,
    /// A network that has walks of windows go on behind where the plain hash of the last key lies.
    WalksByHash,
    /// Engines of hints that show no hint whose key, in windows, lies elsewhere than its plain hash says.
    HintsByHash,
    /// Engines that show comparisons no key which, in windows, lies elsewhere than its plain hash says.
    RepairsByHash,
    /// A network that asks nodes to make only those keys clean which lie, in windows, where their plain hash says.
    CollectsByHash,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 74] = [
        Plant::LyingDisk,
        Plant::ForgetfulEngine,
        Plant::StaleEngine,
        Plant::TamperingNetwork,
        Plant::RewoundIdentity,
        Plant::DroppedContext,
        Plant::ForgottenRead,
        Plant::HoardedHints,
        Plant::HastyReads,
        Plant::HastyCollection,
        Plant::HastyReaping,
        Plant::IdleRepair,
        Plant::OverlookedLeaves,
        Plant::UncheckedReads,
        Plant::AcksEarly,
        Plant::AcksOneBehind,
        Plant::HintsAckedEarly,
        Plant::LyingDirectories,
        Plant::LyingHints,
        Plant::LyingIdentity,
        Plant::HintsDropped,
        Plant::HintsInMemory,
        Plant::HintsMisaddressed,
        Plant::LostWrites,
        Plant::OlderOverNewer,
        Plant::CrossedKeys,
        Plant::StaleStamps,
        Plant::OverlookedExpiry,
        Plant::UnrepairableEngine,
        Plant::TooFewWrites,
        Plant::TooFewReads,
        Plant::SecretlySloppy,
        Plant::WrongResolver,
        Plant::HintsRedirected,
        Plant::ForgedAnswers,
        Plant::OldValues,
        Plant::HeedlessConfirms,
        Plant::LateTags,
        Plant::EmptyForRefilling,
        Plant::EqualSums,
        Plant::ForgottenEpoch,
        Plant::ForgottenRefill,
        Plant::LyingCompaction,
        Plant::ForgottenMembers,
        Plant::PersistIgnored,
        Plant::ConditionsIgnored,
        Plant::LifetimesIgnored,
        Plant::EmptyIsNothing,
        Plant::CrowdedIsDone,
        Plant::OwnQuorumIgnored,
        Plant::MergesClaimed,
        Plant::MovesUncompared,
        Plant::CutsUnannounced,
        Plant::NumbersAtOnce,
        Plant::VersionsIgnored,
        Plant::PastHidden,
        Plant::ServedForAsked,
        Plant::BegunInParts,
        Plant::AbsentForElsewhere,
        Plant::StagedClaimed,
        Plant::DigestsUncompared,
        Plant::ArtifactsUnscrubbed,
        Plant::AllCalledSloppy,
        Plant::AbsentByOne,
        Plant::RefusalIsAbsence,
        Plant::UnavailableIsAbsent,
        Plant::ConditionsDropped,
        Plant::DoorsDenyKeys,
        Plant::EndedLongAgo,
        Plant::StoppedRefuse,
        Plant::WalksByHash,
        Plant::HintsByHash,
        Plant::RepairsByHash,
        Plant::CollectsByHash,
    ];

    /// What it breaks: the invariant whose judge must convict it, the layer at whose seam it lives, and the promise.
    pub fn facts(self) -> (u8, &'static str, &'static str) {
        match self {
            Plant::LyingDisk => (1, "disk", "a synced write survives any power cut"),
            Plant::ForgetfulEngine => (1, "engine", "what is acknowledged stays"),
            Plant::StaleEngine => (7, "engine", "a get sees every write acknowledged before it"),
            Plant::TamperingNetwork => (5, "network", "every value was written by a client"),
            Plant::RewoundIdentity => (5, "disk", "no dot is stamped twice"),
            Plant::DroppedContext => (4, "client", "what a write has seen is replaced by it"),
            Plant::ForgottenRead => (4, "client", "concurrent writes become siblings"),
            Plant::HoardedHints => (2, "engine", "hints reach their targets and go"),
            Plant::HastyReads => (7, "definition", "monotonic reads never go backwards"),
            Plant::HastyCollection => (3, "engine", "a deletion is forgotten only by a round of all nodes"),
            Plant::HastyReaping => (3, "settings", "expired bytes stay for the margin of clocks"),
            Plant::IdleRepair => (2, "settings", "replicas become equal"),
            Plant::OverlookedLeaves => (2, "engine", "comparing finds every difference"),
            Plant::UncheckedReads => (5, "engine", "a record whose checksum fails is never served"),
            Plant::AcksEarly => (1, "engine", "a write is durable before it is acknowledged"),
            Plant::AcksOneBehind => (1, "engine", "a sync answers only what it covers"),
            Plant::HintsAckedEarly => (1, "engine", "a hint is durable before it is acknowledged"),
            Plant::LyingDirectories => (1, "disk", "a name is synced before what it names is acknowledged"),
            Plant::LyingHints => (1, "disk", "a hint is durable before it is acknowledged"),
            Plant::LyingIdentity => (0, "disk", "a node starts again after any power cut"),
            Plant::HintsDropped => (1, "engine", "a hint is removed when its target has acknowledged it"),
            Plant::HintsInMemory => (1, "engine", "a hint is as durable as a record"),
            Plant::HintsMisaddressed => (1, "engine", "a hint counts for its target"),
            Plant::LostWrites => (1, "engine", "what is acknowledged is stored"),
            Plant::OlderOverNewer => (1, "engine", "an older version never replaces a newer one"),
            Plant::CrossedKeys => (5, "engine", "a key has only values that were written to it"),
            Plant::StaleStamps => (5, "engine", "a dot is one write"),
            Plant::OverlookedExpiry => (3, "engine", "nothing is left of what has expired"),
            Plant::UnrepairableEngine => (2, "engine", "a damaged record is replaced from another replica"),
            Plant::TooFewWrites => (1, "definition", "W replicas acknowledge a write"),
            Plant::TooFewReads => (7, "definition", "R replicas answer a get"),
            Plant::SecretlySloppy => (7, "definition", "strict quorums meet"),
            Plant::WrongResolver => (4, "definition", "concurrent writes become siblings"),
            Plant::HintsRedirected => (1, "network", "a hint goes to the replica that missed the write"),
            Plant::ForgedAnswers => (1, "network", "a refusal is no acknowledgement"),
            Plant::OldValues => (5, "network", "a version keeps its value"),
            Plant::HeedlessConfirms => {
                (3, "network", "every node is made clean before a deletion is forgotten")
            }
            Plant::LateTags => (3, "network", "what was read before a round is not stored after it"),
            Plant::EmptyForRefilling => (7, "network", "a node that refills answers no gets"),
            Plant::EqualSums => (2, "network", "comparing finds every difference"),
            Plant::ForgottenEpoch => (0, "disk", "the epoch is durable before a fence is answered"),
            Plant::ForgottenRefill => (7, "disk", "what was lost is remembered until it is refilled"),
            Plant::LyingCompaction => (1, "disk", "copies are synced before their sources go"),
            Plant::ForgottenMembers => (5, "coordination", "an older copy of a disk is known as one"),
            Plant::PersistIgnored => (5, "engine", "a value that was told to live for ever does"),
            Plant::ConditionsIgnored => (4, "client", "a condition holds where the write is stamped"),
            Plant::LifetimesIgnored => (5, "client", "an expiry changes only where its condition holds"),
            Plant::EmptyIsNothing => (1, "engine", "a value of no bytes is kept like any other"),
            Plant::CrowdedIsDone => (1, "network", "an overloaded node has done nothing"),
            Plant::OwnQuorumIgnored => (1, "client", "a write has the copies that its request asked for"),
            Plant::MergesClaimed => {
                (1, "network", "gets go to those that entered when these have all that was acknowledged")
            }
            Plant::MovesUncompared => {
                (1, "network", "who enters brings all in, and who leaves gives all back")
            }
            Plant::CutsUnannounced => {
                (7, "document", "a request from before a cut is refused, with the news")
            }
            Plant::NumbersAtOnce => (1, "document", "who answers for a store has all that was acknowledged"),
            Plant::VersionsIgnored => {
                (6, "coordination", "a document is replaced only by a writer that has read it")
            }
            Plant::PastHidden => (5, "coordination", "a node's past is what its newest start left"),
            _ => self.facts_of_absence(),
        }
    }

    /// The same of what is broken of who may say that a key is absent, or that fallbacks stood in.
    fn facts_of_absence(self) -> (u8, &'static str, &'static str) {
        match self {
            Plant::AllCalledSloppy => {
                (7, "client", "an answer says that a fallback stood in only where one had to")
            }
            Plant::AbsentByOne => (11, "client", "a key is absent when R replicas hold nothing that lives"),
            Plant::RefusalIsAbsence => (11, "network", "a replica that has not looked has not found nothing"),
            Plant::UnavailableIsAbsent => (11, "client", "a key of which too few can tell is unavailable"),
            Plant::ConditionsDropped => (11, "network", "a condition is judged by R replicas"),
            Plant::DoorsDenyKeys => (11, "network", "a door counts each key that is there"),
            Plant::EndedLongAgo => (9, "coordination", "a copy stays where it came for its residence time"),
            Plant::StoppedRefuse => (12, "network", "a node whose process is stopped is not replaced"),
            _ => self.facts_of_windows(),
        }
    }

    /// The same of rooms that ask the plain hash, where the store says where a key lies.
    fn facts_of_windows(self) -> (u8, &'static str, &'static str) {
        match self {
            Plant::WalksByHash => (7, "network", "a walk asks the store where a key lies"),
            Plant::HintsByHash => (2, "engine", "a hint's delivery asks the store where its key lies"),
            Plant::RepairsByHash => (2, "engine", "a comparison asks the store where keys lie"),
            Plant::CollectsByHash => (3, "network", "a collection round asks the store where a key lies"),
            _ => self.facts_of_artifacts(),
        }
    }

    /// The same of what is broken of read-only stores.
    fn facts_of_artifacts(self) -> (u8, &'static str, &'static str) {
        match self {
            Plant::ServedForAsked => {
                (10, "network", "a replica answers from the artifact that a request names")
            }
            Plant::BegunInParts => (10, "client", "a request is begun again as a whole"),
            Plant::AbsentForElsewhere => {
                (10, "network", "only a replica that has looked says that a key is absent")
            }
            Plant::StagedClaimed => {
                (10, "network", "what is served is held by enough replicas of every slice")
            }
            Plant::DigestsUncompared => (10, "source", "what is served is what was built"),
            Plant::ArtifactsUnscrubbed => (10, "settings", "damage is found where nobody reads"),
            other => unreachable!("{other:?} breaks nothing of read-only stores"),
        }
    }

    /// The invariant whose judge must convict it.
    pub fn breaks(self) -> u8 {
        self.facts().0
    }

    /// Whether it lives in the engines.
    pub fn is_in_engines(self) -> bool {
        self.facts().1 == "engine" || self == Plant::RewoundIdentity
    }

    /// What a disk says is done without doing it.
    pub fn lie(self) -> Option<Lie> {
        match self {
            Plant::LyingDisk => Some(Lie::Files("")),
            Plant::LyingDirectories => Some(Lie::Directories),
            Plant::LyingHints => Some(Lie::Files("hints/")),
            Plant::LyingIdentity => Some(Lie::Files("identity")),
            Plant::ForgottenEpoch => Some(Lie::Renames("epoch")),
            Plant::ForgottenRefill => Some(Lie::Renames("refill")),
            Plant::LyingCompaction => Some(Lie::Files(".tmp")),
            _ => None,
        }
    }

    /// The plant with this name on the command line.
    pub fn named(name: &str) -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| format!("{plant:?}").eq_ignore_ascii_case(name))
    }
}

/// What a planted disk says is done, and does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Syncs of files whose paths have this part.
    Files(&'static str),
    /// Syncs of the names in directories.
    Directories,
    /// Renames to this path.
    Renames(&'static str),
}
