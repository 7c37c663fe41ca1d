//! What only providers must keep.

use std::time::Instant;

use model::elasticity::adapter::{Instance, InstanceState, Instances, ProviderFacts};
use serde_json::{Value as Json, json};

use super::{Checking, Kept};
use crate::adapter::rpc::REFUSED;
use crate::failure::CliError;

/// What a machine runs that is asked for here.
const SCRIPT: &str = "#!/bin/sh\nexec sleep 3600\n";
/// Pause between two looks.
const LOOK_PAUSE: std::time::Duration = std::time::Duration::from_millis(300);

impl Checking<'_> {
    pub(super) fn provider(&mut self, facts: &ProviderFacts) -> Result<(), CliError> {
        let fleet = self.arguments.fleet.clone();
        let listed = self.list().map(drop);
        self.note("it lists machines", listed);
        let gone = json!({ "fleet": fleet, "instance": "no-such-instance" });
        let gone = self.result::<Json>("terminate", &gone).map(drop);
        self.note("terminate of a machine that is not there succeeds", gone);
        let unknown = json!({ "fleet": fleet, "token": "check-0", "type": "no-such-type", "script": SCRIPT });
        let unknown = self.fails("ensure", &unknown, REFUSED);
        self.note("ensure of an unknown type is refused for good", unknown);
        let Some(kind) = self.arguments.kind.clone() else { return Ok(()) };
        if !facts.types.iter().any(|one| one.name == kind) {
            let why = format!("describe names no type {kind:?}");
            self.note("ensure begins a machine", Err(why));
            return Ok(());
        }
        let token = format!("check-{}-{}", std::process::id(), crate::clocks::now_ms());
        let ended = self.machine(&fleet, &token, &kind);
        // Whatever was found, nothing that costs stays behind.
        if let Ok(left) = self.with_token(&token) {
            for instance in left.iter().filter(|one| one.state != InstanceState::Ended) {
                let params = json!({ "fleet": fleet, "instance": instance.id });
                let _ = self.child.call("terminate", &params);
            }
        }
        ended
    }

    /// The life of one machine.
    fn machine(&mut self, fleet: &str, token: &str, kind: &str) -> Result<(), CliError> {
        let ensure = json!({ "fleet": fleet, "token": token, "type": kind, "script": SCRIPT });
        let begun =
            self.result::<Json>("ensure", &ensure).and_then(|_| self.result::<Json>("ensure", &ensure));
        if !self.note("ensure begins a machine, and may be repeated", begun.map(drop)) {
            return Ok(());
        }
        let running = self.await_running(token);
        let instance = running.as_ref().ok().cloned();
        self.note("its machine runs, and list shows it with token and address", running.map(drop));
        let Some(instance) = instance else { return Ok(()) };
        let again = self.result::<Json>("ensure", &ensure).and_then(|_| self.only(token)).map(drop);
        self.note("a token has one machine, however often ensure was called", again);
        self.start_again()?;
        let remembered = self.only(token).and_then(|found| match found.id == instance.id {
            true => Ok(()),
            false => Err(format!("it was {}, and is {} now", instance.id, found.id)),
        });
        self.note("another process of the adapter lists the same machine", remembered);
        let one = json!({ "fleet": fleet, "instance": instance.id });
        let may = self.result::<Json>("preflight", &one).map(drop);
        self.note("preflight says whether it would be ended", may);
        let ended =
            self.result::<Json>("terminate", &one).and_then(|_| self.result::<Json>("terminate", &one));
        self.note("terminate may be repeated", ended.map(drop));
        let gone = self.await_gone(token);
        self.note("a machine that was terminated is gone from list, or ended", gone);
        Ok(())
    }

    fn list(&mut self) -> Result<Vec<Instance>, String> {
        let params = json!({ "fleet": self.arguments.fleet });
        self.result::<Instances>("list", &params).map(|listed| listed.instances)
    }

    fn with_token(&mut self, token: &str) -> Result<Vec<Instance>, String> {
        let listed = self.list()?.into_iter();
        Ok(listed.filter(|instance| instance.token.as_deref() == Some(token)).collect())
    }

    fn only(&mut self, token: &str) -> Result<Instance, String> {
        let mut found = self.with_token(token)?;
        match (found.pop(), found.len()) {
            (Some(instance), 0) => Ok(instance),
            (None, _) => Err(format!("list shows no machine of token {token}")),
            (Some(_), more) => Err(format!("list shows {} machines of token {token}", more + 1)),
        }
    }

    fn await_running(&mut self, token: &str) -> Result<Instance, String> {
        let began = Instant::now();
        loop {
            let found = self.only(token);
            match found {
                Ok(instance) if instance.state == InstanceState::Running && instance.address.is_some() => {
                    return Ok(instance);
                }
                Ok(Instance { state: InstanceState::Ended, detail, .. }) => {
                    return Err(format!("it has ended: {}", detail.unwrap_or_default()));
                }
                found if began.elapsed() >= self.arguments.machine_within => {
                    return Err(found
                        .err()
                        .unwrap_or_else(|| "it does not run, or has no address".to_owned()));
                }
                _ => std::thread::sleep(LOOK_PAUSE),
            }
        }
    }

    fn await_gone(&mut self, token: &str) -> Kept {
        let began = Instant::now();
        loop {
            let left = self.with_token(token)?;
            if left.iter().all(|instance| instance.state == InstanceState::Ended) {
                return Ok(());
            }
            if began.elapsed() >= self.arguments.machine_within {
                return Err(format!("{} is there yet", left[0].id));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}
