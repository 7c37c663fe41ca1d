//! What is known about one other node, and what follows from it.
//!
//! Only facts are kept, each with its moment; the state is computed from them and the time. So no order of events can
//! leave a state behind that its facts no longer justify.

use std::fmt;
use std::time::Duration;

use model::{Moment, NodeId};
use serde::{Deserialize, Serialize};

use super::phi::Window;
use super::row::Row;

/// Phi from which on a node is suspected: one false alarm in a hundred million beats, if beats were normal.
pub const PHI_SUSPECTED: f64 = 8.0;
/// Silence after which a suspected node is believed down: no pause that a process survives is near it.
pub const DOWN_AFTER: Duration = Duration::from_secs(10);
/// How long nobody must listen at a node's address until its process is believed gone: longer than taking the
/// address over from a predecessor.
pub const GONE_AFTER: Duration = Duration::from_secs(1);
/// A request that waited less than this proves nothing when it is given up.
pub const LATE_AFTER: Duration = Duration::from_millis(500);
/// Exchanges in a row without an answer that make a node suspected: one may be lost, three are no accident.
pub const EXCHANGES_MISSED_MAX: u32 = 3;

/// What is believed about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeLiveness {
    /// Requests go there.
    Alive,
    /// Routing avoids it; hints are written for it.
    Suspected,
    /// Believed gone; hints wait without trying.
    Down,
    /// It said that it stops.
    Left,
}

impl NodeLiveness {
    /// Its name for programs and people.
    pub fn name(self) -> &'static str {
        match self {
            NodeLiveness::Alive => "alive",
            NodeLiveness::Suspected => "suspected",
            NodeLiveness::Down => "down",
            NodeLiveness::Left => "left",
        }
    }
}

/// What a request, or an attempt to connect, experienced with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experience {
    /// It answered a request; a refusal is an answer.
    Replied,
    /// A new link to it has shaken hands.
    Greeted,
    /// It answered that it stops, and takes nothing in any more.
    Stopping,
    /// Something came from it lately; perhaps before what was experienced since.
    Heard,
    /// The link to it broke.
    LinkBroke,
    /// Its machine says that nobody listens at its address.
    Refused,
    /// No connection for another reason: no answer, no route, no handshake.
    Unreachable,
    /// A request was given up after this long, and nothing at all came over its link meanwhile.
    Unanswered {
        /// Since the request was sent.
        waited: Duration,
    },
}

/// Why a node is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing speaks against it.
    Beats,
    /// Nothing was heard of it yet, and it is early.
    NotHeardYet,
    /// Its silence is surprising.
    Silent,
    /// As [`Experience::LinkBroke`].
    LinkBroke,
    /// As [`Experience::Refused`].
    Refused,
    /// As [`Experience::Unreachable`].
    Unreachable,
    /// As [`Experience::Unanswered`].
    Unanswered,
    /// It does not answer this node's gossip.
    GossipUnanswered,
    /// Nobody listened at its address for [`GONE_AFTER`].
    Gone,
    /// It was silent for [`DOWN_AFTER`].
    SilentForLong,
    /// It said that it stops.
    SaidSo,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Beats => "its heartbeats arrive",
            Why::NotHeardYet => "no sign of a failure so far",
            Why::Silent => "missed heartbeats",
            Why::LinkBroke => "the connection to it broke",
            Why::Refused => "it refused a connection",
            Why::Unreachable => "cannot connect to it",
            Why::Unanswered => "a request to it timed out",
            Why::GossipUnanswered => "it does not answer this node's heartbeats",
            Why::Gone => "it repeatedly refused connections",
            Why::SilentForLong => "no heartbeat for too long",
            Why::SaidSo => "it announced that it was stopping",
        })
    }
}

/// Refused connections in a row.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    first: Moment,
    last: Moment,
}

/// The facts about one node.
#[derive(Clone, Debug)]
pub(super) struct GossipMember {
    pub(super) row: Option<Row>,
    /// The node itself has told this node the incarnation of its row.
    proven: bool,
    /// Others tell of a later incarnation, of which the node itself has told nothing yet.
    pub(super) claimed: bool,
    intervals: Window,
    /// When its row last advanced; before the first time, when it became a member.
    advanced: Moment,
    /// Last sign of life of any kind.
    heard: Moment,
    /// What this node's own requests hold against it, until it answers one.
    doubt: Option<Why>,
    refusals: Option<Refusals>,
    /// The exchange that is out.
    pub(super) exchange: Option<Moment>,
    missed: u32,
    /// It has answered this node, so there was a link whose end will be noticed.
    pub(super) met: bool,
    /// As announced last.
    pub(super) state: NodeLiveness,
    /// Anything at all was heard of its process.
    pub(super) known: bool,
    /// People were told that it is not alive.
    told: bool,
}

impl GossipMember {
    pub(super) fn new(now: Moment) -> GossipMember {
        GossipMember {
            row: None,
            proven: false,
            claimed: false,
            intervals: Window::default(),
            advanced: now,
            heard: now,
            doubt: None,
            refusals: None,
            exchange: None,
            missed: 0,
            met: false,
            state: NodeLiveness::Alive,
            known: false,
            told: false,
        }
    }

    /// Takes in a row that the node sent itself. Of an incarnation that only others have told it says what is true.
    pub(super) fn learn_of_itself(&mut self, row: Row, now: Moment) {
        self.claimed = false;
        if !self.proven && self.row.is_some_and(|told| told.incarnation > row.incarnation) {
            // Nobody has lived under that one, so the row's own heartbeats begin here.
            self.row = None;
        }
        self.join(row, now);
        self.proven |= self.row.is_some_and(|known| known.incarnation == row.incarnation);
    }

    /// Takes in a row that others tell. A later incarnation is not adopted from them.
    pub(super) fn learn(&mut self, row: Row, now: Moment) {
        match self.row {
            Some(known) if row.incarnation > known.incarnation => self.claimed = true,
            _ => self.join(row, now),
        }
    }

    fn join(&mut self, row: Row, now: Moment) {
        let Some(known) = self.row else {
            // Rows of the dead go round as well: the first one seen proves no life, the next heartbeat does.
            self.row = Some(row);
            self.advanced = now;
            return;
        };
        if row <= known {
            return;
        }
        self.row = Some(known.join(row));
        if row.is_later_than(&known) {
            if row.incarnation != known.incarnation || (known.left && !row.left) {
                // Another process: what was held against the one before does not bear on it.
                self.doubt = None;
                self.refusals = None;
                self.missed = 0;
            } else {
                self.intervals.record(now.since(self.advanced));
            }
            self.advanced = now;
            self.heard = now;
            self.known = true;
        }
    }

    pub(super) fn experience(&mut self, experience: Experience, now: Moment) {
        self.known |= matches!(experience, Experience::Replied | Experience::Heard | Experience::LinkBroke);
        match experience {
            Experience::Replied | Experience::Greeted => {
                self.heard = now;
                self.doubt = None;
                self.refusals = None;
                self.missed = 0;
                self.met = true;
            }
            Experience::Heard => self.heard = now,
            Experience::LinkBroke => self.doubt = Some(Why::LinkBroke),
            Experience::Unreachable => self.doubt = Some(Why::Unreachable),
            Experience::Refused => {
                self.doubt = Some(Why::Refused);
                let first = self.refusals.map_or(now, |refusals| refusals.first);
                self.refusals = Some(Refusals { first, last: now });
            }
            Experience::Unanswered { waited } if waited >= LATE_AFTER => self.doubt = Some(Why::Unanswered),
            // That a node stops it says in gossip, to nodes.
            Experience::Unanswered { .. } | Experience::Stopping => {}
        }
    }

    /// Whether people want to hear that this is believed now.
    pub(super) fn is_news(&mut self, state: NodeLiveness) -> bool {
        let news = match state {
            NodeLiveness::Alive => return std::mem::take(&mut self.told),
            NodeLiveness::Suspected => self.known,
            NodeLiveness::Down | NodeLiveness::Left => true,
        };
        self.told |= news;
        news
    }

    /// An exchange ended without an answer.
    pub(super) fn miss(&mut self) {
        self.exchange = None;
        self.missed += 1;
        if self.missed >= EXCHANGES_MISSED_MAX && self.doubt.is_none() {
            self.doubt = Some(Why::GossipUnanswered);
        }
    }

    /// This node slept for that long, not the others.
    pub(super) fn forgive(&mut self, lateness: Duration, now: Moment) {
        let later = |moment: Moment| moment.after(lateness).min(now);
        self.heard = later(self.heard);
        self.advanced = later(self.advanced);
        self.exchange = self.exchange.map(later);
        let later_both = |Refusals { first, last }| Refusals { first: later(first), last: later(last) };
        self.refusals = self.refusals.map(later_both);
    }

    /// What holds between two steps.
    pub(super) fn check(&self) {
        assert!(
            self.missed < EXCHANGES_MISSED_MAX || self.doubt.is_some(),
            "a node that misses that many exchanges is doubted"
        );
        assert!(
            self.state != NodeLiveness::Alive || !self.told,
            "who is told that a node is gone hears that it is back"
        );
        self.intervals.check();
    }

    pub(super) fn silence(&self, now: Moment) -> Duration {
        now.since(self.heard)
    }

    pub(super) fn phi(&self, now: Moment) -> f64 {
        self.intervals.phi(self.silence(now))
    }

    /// What follows from the facts.
    pub(super) fn verdict(&self, now: Moment) -> (NodeLiveness, Why) {
        if self.row.is_some_and(|row| row.left) {
            return (NodeLiveness::Left, Why::SaidSo);
        }
        // Refusals before the last sign of life were those of an address in between two processes.
        let refused_for = |refusals: Refusals| refusals.last.since(refusals.first.max(self.heard));
        if self.refusals.is_some_and(|refusals| refused_for(refusals) >= GONE_AFTER) {
            return (NodeLiveness::Down, Why::Gone);
        }
        if self.silence(now) >= DOWN_AFTER {
            return (NodeLiveness::Down, Why::SilentForLong);
        }
        if let Some(doubt) = self.doubt {
            return (NodeLiveness::Suspected, doubt);
        }
        if self.phi(now) >= PHI_SUSPECTED {
            return (NodeLiveness::Suspected, Why::Silent);
        }
        (NodeLiveness::Alive, if self.row.is_some() { Why::Beats } else { Why::NotHeardYet })
    }
}

/// A node as another one sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeBelief {
    /// Which node.
    pub node: NodeId,
    /// What is believed about it.
    pub state: NodeLiveness,
    /// Why.
    pub why: Why,
    /// How surprising its silence is, 0 to 100.
    pub phi: f64,
    /// Since the last sign of life, or since it became a member.
    pub silence: Duration,
    /// Whether there was any sign of life since this process started. The silence of a node of which there was none is
    /// as long as this process runs, and says little.
    pub heard: bool,
    /// Its newest row, if one came.
    pub row: Option<Row>,
}
