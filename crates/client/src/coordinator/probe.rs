//! Asks suspected nodes whether they are there, before writes are refused because too few seem to be.

use std::sync::Arc;

use model::{Generation, NodeId, PreferenceList};
use protocol::quorum::{Probe, ProbeAction, ProbeEvent, Reach, ReplicaError};
use wire::messages::{Ping, Request, RequestOptions, Response};

use super::drive::{Desk, Drive, Job};
use super::{Coordinator, Direction, Scope, required};

#[derive(Default)]
struct ProbeJob {
    refused: Option<Vec<usize>>,
}

impl Coordinator {
    /// What the own node must reach for its writes under these options.
    ///
    /// # Panics
    /// At a client, which has no own node.
    pub fn reach(&self, definition: &model::Store, options: &RequestOptions) -> Reach {
        let own = self.replicas.own().expect("only nodes drive writes");
        let (required, spared, sloppy) = required(definition, options, Direction::Write);
        Reach { own, required, spared, sloppy }
    }

    /// The positions of those keys, ascending, whose writes must be refused because too few of their nodes are there,
    /// whatever is suspected of them. Takes a part of the request's time at most.
    ///
    /// # Panics
    /// At a client, which has no own node.
    pub async fn out_of_reach<'a>(
        self: &Arc<Self>,
        scope: Scope,
        preferences: impl IntoIterator<Item = &'a PreferenceList>,
        options: &RequestOptions,
    ) -> Vec<usize> {
        let mut drive = {
            let reach = self.reach(&scope.definition, options);
            let (now, deadline) = (self.ports.clock.now(), self.deadline(options));
            let suspected = |node| self.replicas.is_suspected(node);
            let mut actions = Vec::new();
            let probe = Probe::start(reach, preferences, suspected, now, deadline, &mut actions);
            Drive::start(
                ProbeJob::default(),
                probe,
                actions,
                Desk::new(self.clone(), scope, Generation::default()),
            )
        };
        drive.run().await;
        drive.job.refused.expect("an answered probe has said what is refused")
    }
}

impl Job for ProbeJob {
    type Machine = Probe;
    type Asked = NodeId;

    fn act(&mut self, action: ProbeAction, desk: &mut Desk<NodeId>) {
        match action {
            ProbeAction::Ask { node } => desk.ask(node, node, Request::Ping(Ping {})),
            ProbeAction::Answer { refused } => {
                let refused: Vec<usize> = refused.into_iter().map(|key| key.position()).collect();
                assert!(refused.is_sorted_by(|before, after| before < after), "{refused:?} ascend");
                assert_eq!(self.refused, None, "a probe is answered twice, now with {refused:?}");
                self.refused = Some(refused);
            }
        }
    }

    fn event(
        &mut self,
        node: NodeId,
        answer: Result<Response, ReplicaError>,
        _desk: &mut Desk<NodeId>,
    ) -> Option<ProbeEvent> {
        Some(match answer {
            Err(ReplicaError::Unreachable | ReplicaError::Lost) => ProbeEvent::Failed { node },
            // A refusal is an answer, too.
            Ok(_) | Err(_) => ProbeEvent::Answered { node },
        })
    }
}
