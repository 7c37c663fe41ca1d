//! A connection whose `MULTI` was refused: nothing that follows is carried out before `EXEC` or `DISCARD`.
//!
//! Clients send a whole transaction before they read the first answer. A node that refused `MULTI` and carried out the
//! rest would write what the client then reports as not written.
//!
//! ```text
//!   MULTI  ── refused ──▶ open ── any command: refused ──▶ open
//!                          │
//!                          ├── EXEC: EXECABORT ──▶ none
//!                          ├── DISCARD: OK ──────▶ none
//!                          └── RESET, QUIT: carried out, and both end it
//! ```
//!
//! Must never: let a command through while a transaction is open, except those two.

use wire::resp::Command;

use super::reply::DoorReply;

/// Whether a connection is between `MULTI` and `EXEC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Transaction {
    /// It is not.
    #[default]
    None,
    /// It is: `MULTI` was refused.
    Refused,
}

/// The commands that mean something to a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Multi,
    Exec,
    Discard,
    Watch,
    Reset,
    Quit,
}

impl Word {
    const ALL: [(&'static str, Word); 6] = [
        ("multi", Word::Multi),
        ("exec", Word::Exec),
        ("discard", Word::Discard),
        ("watch", Word::Watch),
        ("reset", Word::Reset),
        ("quit", Word::Quit),
    ];

    fn of(name: &[u8]) -> Option<(&'static str, Word)> {
        Word::ALL.into_iter().find(|(word, _)| name.eq_ignore_ascii_case(word.as_bytes()))
    }
}

impl Transaction {
    /// The answer to a command that a transaction has to do with; `None` for one that is to be carried out.
    ///
    /// Before authentication `MULTI` begins nothing, as in Redis: the commands after it are refused as well.
    pub(super) fn answer(&mut self, command: &Command, authenticated: bool) -> Option<DoorReply> {
        let found = Word::of(command.name());
        let begins_or_ends = matches!(found, Some((_, Word::Multi | Word::Exec | Word::Discard)));
        if begins_or_ends && !authenticated {
            return Some(DoorReply::no_auth());
        }
        if begins_or_ends && command.len() + command.dropped() != 1 {
            let (name, _) = found.expect("it was found");
            return Some(DoorReply::arity(name));
        }
        match (*self, found.map(|(_, word)| word)) {
            (Transaction::None, Some(Word::Multi)) => {
                *self = Transaction::Refused;
                Some(DoorReply::err(
                    "unknown command 'MULTI': Tontine has no transactions, and carries out nothing until EXEC or \
                     DISCARD. Send the commands without MULTI and EXEC, in redis-py with pipeline(transaction=False)",
                ))
            }
            (Transaction::None, Some(Word::Exec)) => Some(DoorReply::err("EXEC without MULTI")),
            (Transaction::None, Some(Word::Discard)) => Some(DoorReply::err("DISCARD without MULTI")),
            (Transaction::None, _) | (Transaction::Refused, Some(Word::Reset | Word::Quit)) => None,
            (Transaction::Refused, Some(Word::Exec)) => {
                *self = Transaction::None;
                Some(DoorReply::Error(
                    "EXECABORT Transaction discarded because of previous errors. Tontine has no transactions: none of \
                     these commands was carried out"
                        .to_owned(),
                ))
            }
            (Transaction::Refused, Some(Word::Discard)) => {
                *self = Transaction::None;
                Some(DoorReply::OK)
            }
            (Transaction::Refused, Some(Word::Multi)) => {
                Some(DoorReply::err("MULTI calls can not be nested"))
            }
            (Transaction::Refused, Some(Word::Watch)) => {
                Some(DoorReply::err("WATCH inside MULTI is not allowed"))
            }
            (Transaction::Refused, None) => Some(DoorReply::err(
                "not carried out: Tontine has no transactions, so MULTI was refused on this connection. Send EXEC or \
                 DISCARD before other commands",
            )),
        }
    }
}
