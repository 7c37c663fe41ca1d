//! Runs in which a planted bug has its chance.

use std::time::Duration;

use coordination::memory::MemoryFaults;
use storage::Durability;

use super::{EXPIRY_MARGIN, EngineKind, Fault, Losses, SafetyNet, Scenario, Setup};
use crate::network::Conditions;
use crate::plant::Plant;

impl Setup {
    /// A run in which a planted bug has its chance: the faults that bring it out, and nothing that excuses it.
    pub fn planted(seed: u64, plant: Plant) -> Setup {
        let mut setup = Setup::ordinary(seed);
        (setup.nodes, setup.replicas, setup.reads, setup.writes, setup.sloppy) = (3, 3, 2, 2, false);
        (setup.monotonic, setup.expiring) = (false, 0);
        (setup.without, setup.storms) = (Vec::new(), 0);
        (setup.moves, setup.headmasters) = (false, false);
        (setup.buckets, setup.reshapes) = (1, false);
        setup.readers = 0;
        setup.service = MemoryFaults::default();
        (setup.redis_clients, setup.workers) = (0, 1);
        (setup.conditional, setup.walks, setup.long_values, setup.crowded) = (0, 0, 0, None);
        (setup.own_quorums, setup.touches) = (0, 0);
        (setup.empty, setup.too_long) = (None, 0);
        (setup.engine, setup.losses) = (EngineKind::Log(Durability::Always), Losses::None);
        setup.conditions = Conditions::calm();
        (setup.clients, setup.keys, setup.span) = (4, 3, Duration::from_secs(8));
        (setup.think, setup.deadline) = (Duration::from_millis(30), Duration::from_secs(1));
        (setup.puts, setup.deletes, setup.blind) = (500, 0, 100);
        (setup.faults, setup.harms) = setup.bring_out(plant);
        setup.plant = Some(plant);
        setup
    }

    /// What brings a bug out: faults, and how often they strike.
    fn bring_out(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        match plant {
            Plant::LyingDisk => (vec![Fault::PowerCut], 25),
            Plant::RewoundIdentity => {
                (self.engine, self.losses) = (EngineKind::Memory, Losses::Nodes(1));
                (vec![Fault::Kill], 3)
            }
            Plant::HoardedHints | Plant::IdleRepair | Plant::OverlookedLeaves => (vec![Fault::Kill], 8),
            Plant::UncheckedReads => {
                self.losses = Losses::Nodes(1);
                (vec![Fault::FlippedBits], 30)
            }
            Plant::HastyCollection => {
                (self.puts, self.deletes, self.blind) = (400, 200, 0);
                (vec![Fault::Kill], 8)
            }
            Plant::HastyReaping => {
                (self.expiring, self.expiry_margin) = (900, EXPIRY_MARGIN);
                (Vec::new(), 0)
            }
            Plant::HastyReads => {
                (self.reads, self.writes, self.monotonic) = (1, 3, true);
                self.deadline = Duration::from_millis(300);
                (vec![Fault::Isolate, Fault::OneWay], 20)
            }
            Plant::LyingDirectories | Plant::LyingIdentity => (vec![Fault::PowerCut], 25),
            Plant::LyingHints
            | Plant::HintsDropped
            | Plant::HintsInMemory
            | Plant::HintsMisaddressed
            | Plant::HintsRedirected => {
                (self.nodes, self.sloppy) = (5, true);
                (vec![Fault::Kill], 15)
            }
            Plant::OverlookedExpiry => {
                (self.expiring, self.expiry_margin) = (900, EXPIRY_MARGIN);
                (Vec::new(), 0)
            }
            Plant::UnrepairableEngine => {
                self.losses = Losses::Nodes(1);
                (vec![Fault::FlippedBits], 30)
            }
            Plant::TooFewReads | Plant::SecretlySloppy => {
                self.nodes = 5;
                self.deadline = Duration::from_millis(300);
                (vec![Fault::Isolate, Fault::OneWay], 20)
            }
            Plant::ForgedAnswers => (vec![Fault::FullDisk], 15),
            Plant::AcksEarly | Plant::AcksOneBehind => (vec![Fault::SlowDisk], 5),
            Plant::HintsAckedEarly => {
                (self.nodes, self.sloppy) = (5, true);
                (vec![Fault::Kill, Fault::SlowDisk], 15)
            }
            _ => self.bring_out_rare(plant),
        }
    }

    /// The same for bugs that keys under constant use hide, or that only a story brings out.
    fn bring_out_rare(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        match plant {
            Plant::HeedlessConfirms => {
                self.rarely_touch_keys();
                (vec![Fault::Isolate, Fault::Kill], 5)
            }
            Plant::LateTags => {
                self.rarely_touch_keys();
                self.scenario = Some(Scenario::HeldMerges);
                (vec![Fault::OneWay], 0)
            }
            Plant::EmptyForRefilling | Plant::ForgottenRefill => {
                (self.losses, self.hint_bytes_max, self.keys) = (Losses::Nodes(1), 0, 8);
                let cuts = plant == Plant::ForgottenRefill;
                self.scenario =
                    Some(if cuts { Scenario::PowerCutInRefill } else { Scenario::LostDiskBehindCut });
                (vec![Fault::LostDisk, Fault::Kill, Fault::PowerCut], 0)
            }
            Plant::EqualSums => {
                self.hint_bytes_max = 0;
                (vec![Fault::Kill], 8)
            }
            Plant::ForgottenEpoch => {
                self.rarely_touch_keys();
                (vec![Fault::Kill], 4)
            }
            Plant::LyingCompaction => (vec![Fault::PowerCut], 25),
            Plant::ForgottenMembers => {
                self.rarely_touch_keys();
                self.losses = Losses::Nodes(1);
                (vec![Fault::OlderDisk], 10)
            }
            Plant::PersistIgnored => {
                (self.redis_clients, self.touches, self.expiring) = (3, 400, 900);
                (Vec::new(), 0)
            }
            Plant::LifetimesIgnored => {
                (self.redis_clients, self.touches, self.expiring) = (3, 400, 900);
                (Vec::new(), 0)
            }
            Plant::EmptyIsNothing => {
                self.empty = Some((1, 3));
                (Vec::new(), 0)
            }
            Plant::CrowdedIsDone => {
                (self.nodes, self.sloppy) = (5, true);
                self.without = vec![SafetyNet::AntiEntropy, SafetyNet::ReadRepair];
                (vec![Fault::Crowd, Fault::Kill], 20)
            }
            Plant::ConditionsIgnored => {
                self.conditional = 500;
                (Vec::new(), 0)
            }
            Plant::OwnQuorumIgnored => {
                (self.reads, self.writes, self.own_quorums) = (1, 1, 500);
                (Vec::new(), 0)
            }
            _ => self.bring_out_of_windows(plant),
        }
    }

    /// The same for rooms that ask the plain hash: where keys lie in windows, it says another place.
    fn bring_out_of_windows(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        let faults = match plant {
            Plant::WalksByHash => {
                (self.nodes, self.keys, self.walks) = (5, 200, 500);
                (Vec::new(), 0)
            }
            Plant::HintsByHash => {
                (self.nodes, self.sloppy, self.keys) = (5, true, 20);
                (vec![Fault::Kill], 15)
            }
            Plant::RepairsByHash => {
                (self.hint_bytes_max, self.keys) = (0, 20);
                (vec![Fault::Kill], 8)
            }
            Plant::CollectsByHash => {
                self.rarely_touch_keys();
                (vec![Fault::Isolate, Fault::Kill], 5)
            }
            _ => return self.bring_out_moving(plant),
        };
        self.theta = Some(3);
        faults
    }

    /// The same for bugs of moves, and of other bounds of partitions.
    fn bring_out_moving(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        match plant {
            Plant::MergesClaimed | Plant::MovesUncompared => {
                (self.nodes, self.moves, self.keys, self.hint_bytes_max) = (5, true, 40, 0);
                self.headmasters = self.seed.is_multiple_of(2);
                self.without = vec![SafetyNet::AntiEntropy, SafetyNet::Hints, SafetyNet::ReadRepair];
                (vec![Fault::Isolate], 5)
            }
            Plant::CutsUnannounced => {
                (self.nodes, self.moves, self.keys, self.walks) = (5, true, 40, 500);
                (self.buckets, self.reshapes) = (64, true);
                (Vec::new(), 0)
            }
            Plant::NumbersAtOnce => {
                *self = self.clone().with_numbers();
                (self.nodes, self.headmasters, self.keys) = (5, false, 40);
                (self.replicas, self.reads, self.writes) = (3, 2, 2);
                self.without = vec![SafetyNet::AntiEntropy, SafetyNet::Hints, SafetyNet::ReadRepair];
                (vec![Fault::Isolate], 5)
            }
            _ => self.bring_out_of_documents(plant),
        }
    }

    /// The same for bugs of sessions with the coordination service.
    fn bring_out_of_documents(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        match plant {
            Plant::VersionsIgnored => {
                (self.nodes, self.moves) = (5, true);
                self.headmasters = self.seed.is_multiple_of(2);
                let indeterminate_per_mille = 200;
                self.service =
                    MemoryFaults { seed: self.seed, indeterminate_per_mille, ..MemoryFaults::default() };
                (vec![Fault::NewGeneration], 20)
            }
            Plant::PastHidden => {
                self.rarely_touch_keys();
                self.losses = Losses::Nodes(1);
                (vec![Fault::OlderDisk], 10)
            }
            Plant::EndedLongAgo | Plant::StoppedRefuse => self.bring_out_piloted(plant),
            _ => self.bring_out_of_artifacts(plant),
        }
    }

    /// The same for bugs of who may say that a key is absent, or that fallbacks stood in.
    fn bring_out_absence(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        (self.nodes, self.sloppy, self.deletes, self.keys) = (5, true, 100, 20);
        match plant {
            Plant::RefusalIsAbsence => (vec![Fault::Crowd], 20),
            Plant::UnavailableIsAbsent => {
                self.deadline = Duration::from_millis(300);
                (vec![Fault::Isolate, Fault::OneWay], 20)
            }
            Plant::ConditionsDropped => {
                self.conditional = 500;
                (Vec::new(), 0)
            }
            Plant::DoorsDenyKeys => {
                self.redis_clients = 3;
                (Vec::new(), 0)
            }
            _ => (Vec::new(), 0),
        }
    }

    /// The same for bugs of read-only stores.
    fn bring_out_of_artifacts(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        if plant.breaks() == 11 || plant == Plant::AllCalledSloppy {
            return self.bring_out_absence(plant);
        }
        if plant.breaks() == 10 {
            self.readers = 3;
            self.think = Duration::from_millis(5);
        }
        if plant == Plant::ArtifactsUnscrubbed {
            self.losses = Losses::Nodes(1);
            return (vec![Fault::FlippedBits], 20);
        }
        (Vec::new(), 0)
    }

    /// Many keys and few requests, so that a key is left alone for a round or longer; and nothing mends what was missed.
    fn rarely_touch_keys(&mut self) {
        (self.puts, self.deletes, self.blind, self.keys) = (400, 200, 0, 60);
        (self.span, self.think) = (Duration::from_secs(13), Duration::from_millis(300));
        self.without = vec![SafetyNet::AntiEntropy, SafetyNet::Hints, SafetyNet::ReadRepair];
    }
}
