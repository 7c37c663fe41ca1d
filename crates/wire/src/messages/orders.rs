//! Orders for the headmaster, their answers, plans, and the state of the office: what a node reads in the coordination
//! service and puts into it, for whoever has no session there.
//!
//! Contents are values of `model` as JSON, as they are in the documents.

use bytes::Bytes;

use crate::codec::fields;

fields! {
    /// Gives an order. Answered with [`OrderTold`] when it has an answer, or after the wait.
    pub struct OrderGive {
        /// `model::order::Order` as JSON.
        pub json: Bytes,
        /// Who gives it, for people who look.
        pub by: String,
        /// How long to wait for its answer, in milliseconds; a node waits no longer than 30 s.
        pub wait_ms: u32,
    }
}

fields! {
    /// Asks for the answer to an order. Answered with [`OrderTold`] when it has one, or after the wait.
    pub struct OrderAnswer {
        /// The number of the order.
        pub number: u64,
        /// How long to wait, in milliseconds; a node waits no longer than 30 s.
        pub wait_ms: u32,
    }
}

fields! {
    /// An order, and what came of it so far.
    pub struct OrderTold {
        /// Its number; 0 of one that the node has refused by itself.
        pub number: u64,
        /// `Option<model::order::OrderOutcome>` as JSON.
        pub json: Bytes,
        /// The cluster document as JSON, of an order that was carried out.
        pub cluster: Option<Bytes>,
    }
}

fields! {
    /// Asks for a plan, or for all in short. Answered with [`PlanTold`] when its state is another one than `since`, or after
    /// the wait.
    pub struct PlanGet {
        /// The number of the plan; 0 for the one that is under way, or else the newest.
        pub number: u64,
        /// Whether all plans are wanted in short, too.
        pub all: bool,
        /// Which state the asker knows, by [`model::plan::PlanPage::version`]; 0 for none.
        pub since: u64,
        /// How long to wait, in milliseconds; a node waits no longer than 30 s.
        pub wait_ms: u32,
    }
}

fields! {
    /// What was asked of plans.
    pub struct PlanTold {
        /// `model::plan::PlanPage` as JSON.
        pub json: Bytes,
    }
}

fields! {
    /// Asks the state of the office of headmaster: who holds it, and what waits for it.
    pub struct OfficeGet {}
}

fields! {
    /// The state of the office.
    pub struct OfficeTold {
        /// `model::order::Office` as JSON.
        pub json: Bytes,
    }
}
