//! A node that is dead for good: what speaks for that, and the order by which another one takes its places.
//!
//! An operator says that it is dead; that alone is not enough. It must be registered nowhere, nothing may listen at its
//! address, and each member must have heard nothing of it for a while. A process that is merely stopped is found by its
//! address: the operating system goes on to accept connections for it.
//!
//! Must never: call a node gone that answers anybody.

use std::time::Duration;

use model::{Cluster, NodeId, Role};
use protocol::rebalance::planner::{self, Consent, Wish};

use super::desk::{changed, unknown};
use super::members::entering;
use super::office::{Office, Scene, TurnError};
use super::reports::{Signs, Silence};
use crate::orders::{Answer, Given};

/// When to look again whether a node is still registered, or a witness answers.
const REGISTERED_PAUSE: Duration = Duration::from_secs(2);
/// How long everybody must have heard nothing of a node: a pause of a process or of a switch is over by then.
pub(super) const SILENT_MIN: Duration = Duration::from_secs(20);

/// What speaks against a node's being dead, and when to look again if it passes by itself.
type Life = (String, Option<Duration>);

/// What speaks against a node's being dead; nothing when it is.
fn lives(node: NodeId, is_registered: bool, signs: &Signs) -> Option<Life> {
    if is_registered {
        let reason = format!(
            "{node} is registered with the coordination service; its process runs, or ended less than a session's time ago"
        );
        return Some((reason, Some(REGISTERED_PAUSE)));
    }
    if signs.listens {
        let reason = format!("a process listens at the address of {node}, if only one that is stopped");
        return Some((reason, None));
    }
    if signs.silent_for.is_empty() {
        return Some((format!("no other node says whether it hears of {node}"), None));
    }
    // A node that started after the other one's death has heard nothing of it, and those that were there before know more.
    let knows = |silent: &Result<Silence, String>| silent.as_ref().is_ok_and(|silent| silent.heard_before);
    let somebody_knows = signs.silent_for.iter().any(|(_, silent)| knows(silent));
    signs.silent_for.iter().find_map(|(witness, silent)| match silent {
        Err(reason) => {
            // It may have died just now, or be starting.
            let reason = format!("{witness} does not say whether it hears of {node}: {reason}");
            Some((reason, Some(REGISTERED_PAUSE)))
        }
        Ok(Silence { heard_before: false, .. }) if somebody_knows => None,
        Ok(Silence { lasts, heard_before }) if *lasts < SILENT_MIN => {
            let (seconds, needed) = (lasts.as_secs(), SILENT_MIN.as_secs());
            let reason = match heard_before {
                true => format!("{witness} heard of {node} {seconds} s ago, and {needed} s of silence are needed"),
                false => format!(
                    "{witness} runs for {seconds} s only and has not heard of {node}; {needed} s of silence are needed"
                ),
            };
            Some((reason, Some(SILENT_MIN - *lasts)))
        }
        Ok(_) => None,
    })
}

/// The document that calls a node gone, and lets the one that replaces it serve.
fn buried(cluster: &Cluster, node: NodeId, by: NodeId) -> Option<Cluster> {
    let mut next = changed(cluster, node, |entry| (entry.gone, entry.role) = (true, Role::Leaving))?;
    let by = next.nodes.iter_mut().find(|known| known.id == by)?;
    if by.role == Role::Standby {
        by.role = Role::Serving;
    }
    Some(next)
}

/// What is answered about a node that does not look dead.
fn looks_alive(reason: &str, (dead, new): (NodeId, NodeId), passes: bool) -> String {
    let (dead, new) = (dead.0, new.0);
    let next = match passes {
        true => {
            format!("; if it is dead, `tontine node replace {dead} {new} --wait` waits until that is certain")
        }
        false => String::new(),
    };
    format!(
        "it does not look dead: {reason}{next}; to move the data of a node that lives, drain it with `tontine node drain \
         {dead}`"
    )
}

/// What is answered about a node that no partition lists, with so many records that it was known to hold.
fn given_up(node: NodeId, records: u64) -> String {
    let left = match records {
        0 => String::new(),
        records => {
            format!("; other nodes may lack some of {records} records that it held, and these are given up")
        }
    };
    format!("{node} is gone; it was a replica of no partition{left}")
}

impl Office {
    /// A node takes the places of one that is dead for good. First the document says that this one is gone; then there
    /// is a plan, which is applied.
    pub(super) async fn replace_dead(
        &mut self,
        scene: &Scene,
        given: &Given,
        (node, by): (NodeId, NodeId),
        consent: Consent,
    ) -> Result<Answer, TurnError> {
        if let Some(number) = self.created_by(given.number).await? {
            return self.apply(scene, given, number).await;
        }
        let wish = Wish::Replace { node, by };
        let Some(next) = buried(&scene.cluster, node, by) else {
            let missing = if scene.cluster.node(node).is_none() { node } else { by };
            return Ok(unknown(missing));
        };
        // An earlier turn, or order, has judged that; the node itself is told so when it starts.
        let is_gone = scene.cluster.node(node).is_some_and(|entry| entry.gone);
        let refused = |reason: String| {
            let stands = match is_gone {
                true => format!(
                    "; it stands as dead in the cluster document: give the order again, or take it back with `tontine node \
                     recommission {}`",
                    node.0
                ),
                false => String::new(),
            };
            Answer::refused(format!("{node} cannot be replaced: {reason}{stands}"))
        };
        if let Some(other) = self.under_way().await? {
            let other = other.number;
            return Ok(refused(format!(
                "plan {other} is being carried out; wait for it with `tontine plan show {other}`"
            )));
        }
        if by == node {
            return Ok(refused("it cannot take its own places".to_owned()));
        }
        if scene.active(by).is_none() {
            return Ok(refused(format!(
                "{by} is not registered; start it, and look with `tontine node list`"
            )));
        }
        let plan = match planner::plan(&next, &wish, consent) {
            Ok(plan) => plan,
            Err(refusal) => return Ok(refused(refusal.to_string())),
        };
        if !is_gone && let Some((reason, passes)) = self.signs_of_life(scene, node).await {
            let answer = refused(looks_alive(&reason, (node, by), passes.is_some()));
            return Ok(answer.again_after(passes));
        }
        if let Some(reason) = self.deaf(scene, &entering(&plan)).await? {
            return Ok(refused(reason));
        }
        if next.nodes != scene.cluster.nodes {
            self.publish(&next).await?;
            // The next turn goes on with the document that is there then.
            return Err(TurnError::Overtaken);
        }
        let answer = self.create(scene, given, wish, consent).await?;
        match (answer.done, answer.plan) {
            (true, Some(_)) => Err(TurnError::Overtaken),
            (true, None) => {
                let left = self.report(node).map_or(0, |report| report.leftovers);
                Ok(Answer::done(given_up(node, left)))
            }
            (false, _) => Ok(refused(answer.text)),
        }
    }

    /// What speaks against a node's being dead.
    async fn signs_of_life(&self, scene: &Scene, node: NodeId) -> Option<Life> {
        let witnesses: Vec<NodeId> = scene.active.iter().map(|active| active.node.id).collect();
        let signs = self.reports.signs(&scene.cluster, node, &witnesses).await;
        lives(node, scene.active(node).is_some(), &signs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_dead_when_nobody_has_heard_of_it_for_long_and_everybody_says_so() {
        let after =
            |seconds: u64, heard_before| Ok(Silence { lasts: Duration::from_secs(seconds), heard_before });
        let silent = |seconds| after(seconds, true);
        let signs = |silent_for: &[Result<Silence, String>]| Signs {
            listens: false,
            silent_for: silent_for.iter().cloned().zip(1..).map(|(said, id)| (NodeId(id), said)).collect(),
        };
        let dead = signs(&[silent(60), silent(20)]);
        let why = |registered, signs: &Signs| lives(NodeId(3), registered, signs).unwrap_or_default().0;
        assert_eq!(why(false, &dead), "");
        assert!(why(true, &dead).contains("is registered"));
        assert!(why(false, &Signs { listens: true, ..dead.clone() }).contains("a process listens"));
        assert!(why(false, &signs(&[])).contains("no other node says"));
        assert!(why(false, &signs(&[silent(60), silent(19)])).contains("n2 heard of n3 19 s ago"));
        assert!(why(false, &signs(&[Err("away".to_owned()), silent(60)])).contains("n1 does not say"));
        // Who started after its death knows nothing of it; that is no sign of life, nor alone a sign of death.
        assert_eq!(why(false, &signs(&[silent(60), after(2, false)])), "");
        assert!(why(false, &signs(&[after(2, false), after(60, false)])).contains("n1 runs for 2 s only"));
        let again =
            |registered, signs: &Signs| lives(NodeId(3), registered, signs).and_then(|(_, again)| again);
        assert_eq!(again(false, &signs(&[silent(60), silent(19)])), Some(Duration::from_secs(1)));
        assert_eq!((again(true, &dead), again(false, &signs(&[]))), (Some(REGISTERED_PAUSE), None));
        assert_eq!(why(false, &signs(&[after(20, false), after(60, false)])), "");
    }
}
