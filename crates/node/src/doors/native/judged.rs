//! Requests that depend on who asks: judged before they are carried out, and once more where their answer was waited for.
//!
//! Must never: hand out what was waited for to a user that was removed meanwhile.

use runtime::BoxFuture;
use wire::messages::{Authenticate, EventsGet, Failure, Pong, Request, Response};

use super::{Served, rights};
use crate::audit::Asker;

impl Served {
    /// Whether the caller may have this carried out; if not, that is noted.
    pub(super) fn judged(&self, request: &Request) -> Result<(), Failure> {
        rights::judge(&self.caller, self.service.front.replica().view(), request)
            .inspect_err(|failure| self.note_refusal(request, failure))
    }

    /// What an operator asks of the cluster document, or of this node's repair.
    pub(super) fn change(&self, request: Request) -> BoxFuture<'static, Result<Response, Failure>> {
        if matches!(request, Request::ArtifactRead(_)) {
            return (self.service.artifacts)(request);
        }
        let (service, view) = (&self.service, self.service.front.replica().view());
        let (signed, audit) = (rights::signed(&self.caller, view, request), service.counters.audit());
        if matches!(signed, Request::AntiEntropyControl(_)) {
            let antientropy = service.antientropy.clone();
            return audit.order(self.asker(), view, signed, |asked| antientropy.answer(asked));
        }
        // An order was given, whatever becomes of its giver.
        let again = (!matches!(signed, Request::OrderGive(_))).then(|| signed.clone());
        let told = audit.order(self.asker(), view, signed, &*service.orders);
        match again {
            Some(request) => self.judged_again(request, told),
            None => told,
        }
    }

    /// What happened, at once or after a wait.
    pub(super) fn events(&self, get: EventsGet) -> BoxFuture<'static, Result<Response, Failure>> {
        let (telling, clock) = (self.service.telling.clone(), self.service.ports.clock.clone());
        let again = Request::EventsGet(get.clone());
        let told = Box::pin(async move { Ok(telling.events(get, clock).await) });
        self.judged_again(again, told)
    }

    /// An answer that was waited for, if the caller may still have it: its user may have been removed meanwhile.
    pub(super) fn judged_again(
        &self,
        request: Request,
        told: BoxFuture<'static, Result<Response, Failure>>,
    ) -> BoxFuture<'static, Result<Response, Failure>> {
        let (caller, front) = (self.caller.clone(), self.service.front.clone());
        Box::pin(async move {
            let told = told.await?;
            rights::judge(&caller, front.replica().view(), &request)?;
            Ok(told)
        })
    }

    /// Says whose requests follow.
    pub(super) fn authenticate(&self, asked: &Authenticate) -> Result<Response, Failure> {
        let view = self.service.front.replica().view();
        let known = self.caller.authenticate(view, &asked.user, asked.secret.0.as_bytes());
        known.inspect_err(|failure| {
            self.service.counters.audit().refused(self.asker(), view, "authenticate", failure);
        })?;
        Ok(Response::Pong(Pong {}))
    }

    pub(super) fn asker(&self) -> Asker<'_> {
        Asker { caller: &self.caller, from: &self.peer }
    }

    /// Writes down who was refused.
    pub(super) fn note_refusal(&self, request: &Request, failure: &Failure) {
        let view = self.service.front.replica().view();
        self.service.counters.audit().refused(self.asker(), view, request.name(), failure);
    }
}
