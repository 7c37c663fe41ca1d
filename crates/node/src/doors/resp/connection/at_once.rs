//! Commands that are answered before the next one is looked at: plain GET and SET that this node alone can carry out.

use wire::resp::{CommandRead, ReplyWriter};

use super::{ClientConnection, Kind};
use crate::doors::counters::Operation;
use crate::doors::resp::reply::refused;
use crate::doors::resp::rights;
use crate::doors::resp::session::{Session, Speaking};
use crate::doors::resp::transaction::Transaction;
use crate::front::AtHand;

impl ClientConnection<'_> {
    /// Answers plain GET and SET when this node alone can; most requests of a small cluster end here.
    pub(super) fn at_once(&mut self, command: &CommandRead, input: &[u8]) -> bool {
        let Session { authenticated, speaking, transaction, .. } = self.session;
        let plainly = authenticated && speaking == Speaking::On && transaction == Transaction::None;
        if !self.pipeline.is_empty() || !plainly {
            return false;
        }
        let kind = command.arg(input, 0).and_then(Kind::of);
        let plain = match kind {
            Some(Kind::Get) => command.len() == 2,
            Some(Kind::Set) => command.len() == 3,
            _ => false,
        };
        if !plain {
            return false;
        }
        let front = &self.door.front;
        let fresh = matches!(&self.session.current,
            Some((view, _)) if view.cluster().generation == front.replica().view().generation());
        if !fresh {
            self.session.current = front.at_hand(&self.session.store);
        }
        let Some((view, store)) = &self.session.current else { return false };
        let Some(key) = command.arg(input, 1) else { return false };
        if model::Key::check(key).is_err() || !rights::may(&self.session, front.replica().view(), kind, key) {
            return false;
        }
        if self.out.capacity() == 0 {
            self.out = self.door.buffers.take();
        }
        self.burst.began();
        self.session.last = kind;
        let mut writer = ReplyWriter::new(&mut self.out, self.session.protocol);
        if kind == Some(Kind::Get) {
            let mut show = |value: &[u8]| writer.bulk(value);
            let shown = match store {
                AtHand::Versions(store) => front.get_now(view, store, key, &mut show),
                AtHand::Artifacts(store) => front.get_artifact_now(view, store, key, &mut show).map(Ok),
            };
            match shown {
                None => return false,
                Some(Ok(true)) => {}
                Some(Ok(false)) => writer.null(),
                Some(Err(failure)) => writer.error(&refused(self.burst.counters(), &failure)),
            }
            self.burst.answered(Operation::Get);
            return true;
        }
        let (Some(value), AtHand::Versions(store)) = (command.arg(input, 2), store) else { return false };
        match front.put_now(view, store, key, value) {
            None => return false,
            Some(Ok(())) => writer.ok(),
            Some(Err(failure)) => writer.error(&refused(self.burst.counters(), &failure)),
        }
        self.burst.answered(Operation::Put);
        true
    }
}
