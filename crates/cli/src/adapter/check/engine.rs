//! What only engines must keep.

use std::collections::BTreeSet;

use model::elasticity::adapter::{Boot, Evidence, Member, MemberState, Members};
use model::unquoted;
use serde_json::json;

use super::child::CallResult;
use super::{Checking, Kept};
use crate::failure::CliError;

impl Checking<'_> {
    pub(super) fn engine(&mut self) -> Result<(), CliError> {
        let fleet = self.arguments.fleet.clone();
        let boot = json!({ "fleet": fleet, "token": "check-1" });
        let booted = self.result::<Boot>("boot", &boot).and_then(|first| {
            let again = self.result::<Boot>("boot", &boot)?;
            match (first.script.trim().is_empty(), first == again) {
                (true, _) => Err("the script is empty".to_owned()),
                (_, false) => Err("two calls for one token give two scripts".to_owned()),
                _ => Ok(()),
            }
        });
        self.note("boot gives a script, the same for one token", booted);
        let observed = self.observed();
        let members = observed.as_ref().ok().cloned().unwrap_or_default();
        self.note("observe names each member once, and measures are numbers", observed.map(drop));
        self.start_again()?;
        let again = self.observed().and_then(|now| {
            let ids =
                |members: &[Member]| members.iter().map(|member| member.id.clone()).collect::<BTreeSet<_>>();
            if ids(&now) == ids(&members) { Ok(()) } else { Err("it names other members".to_owned()) }
        });
        self.note("another process of the adapter observes the same members", again);
        if let Some(serving) = members.iter().find(|member| member.state == MemberState::Serving) {
            let kept = self.no_proof(serving);
            self.note("evidence of a member that serves is no proof", kept);
        }
        let lacking = json!({ "fleet": fleet });
        let lacking = self.fails("evidence", &lacking, super::PARAMS);
        self.note("evidence of no member is an error -32602", lacking);
        let unknown = json!({ "fleet": fleet, "address": "192.0.2.1" });
        let unknown = match self.child.call("evidence", &unknown) {
            Ok(CallResult::Result(result)) => serde_json::from_value::<Evidence>(result)
                .map(drop)
                .map_err(|error| format!("it answers in another form: {}", unquoted::json(&error))),
            Ok(CallResult::Error { message, .. }) if !message.is_empty() => Ok(()),
            Ok(CallResult::Error { .. }) => Err("it fails without a message".to_owned()),
            Err(why) => Err(why),
        };
        self.note("evidence may be asked of the address of a machine that never became a member", unknown);
        Ok(())
    }

    fn observed(&mut self) -> Result<Vec<Member>, String> {
        let params = json!({ "fleet": self.arguments.fleet });
        let Members { members } = self.result("observe", &params)?;
        let mut ids = BTreeSet::new();
        for member in &members {
            if member.id.is_empty() || !ids.insert(&member.id) {
                return Err(format!("the id {:?} is empty, or of two members", member.id));
            }
            if let Some((name, _)) = member.measures.iter().find(|(_, measured)| !measured.value.is_finite())
            {
                return Err(format!("{name} of {} is no number", member.id));
            }
        }
        Ok(members)
    }

    fn no_proof(&mut self, member: &Member) -> Kept {
        let params = json!({ "fleet": self.arguments.fleet, "member": member.id });
        let evidence: Evidence = self.result("evidence", &params)?;
        if evidence.witnesses.contains(&member.id) {
            return Err(format!("{} is a witness of itself", member.id));
        }
        match evidence.proves() {
            false => Ok(()),
            true => Err(format!("it proves that {} holds nothing, and it serves", member.id)),
        }
    }
}
