//! The commands: what each is called, how many arguments it takes, which of them are keys, and who carries it out.

mod configuration;
pub(super) mod connections;
mod expiry;
pub(super) mod keys;
mod object;
mod refused;
pub(super) mod session;
pub(super) mod strings;
mod versions;
mod walk;

use std::sync::Arc;

use bytes::Bytes;
use model::access::Right;
use model::limits::MULTI_KEYS_MAX;
use model::{Key, Token};
use protocol::pipeline::{Access, Touches};
use wire::ErrorCode;
use wire::messages::Failure;
use wire::resp::Command;

use super::reply::DoorReply;
use crate::doors::counters::Operation;
use crate::front::Front;

macro_rules! commands {
    ($($variant:ident $name:literal $arity:literal ($first:literal $last:literal $step:literal) $flags:literal $about_session:literal,)*) => {
        /// A command that the door knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind { $($variant,)* }

        impl Kind {
            pub(super) const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The command of this name, in any case.
            pub(super) fn of(name: &[u8]) -> Option<Kind> {
                let mut lower = [0_u8; 24];
                let lower = lower.get_mut(..name.len())?;
                lower.copy_from_slice(name);
                lower.make_ascii_lowercase();
                match std::str::from_utf8(lower).ok()? {
                    $($name => Some(Kind::$variant),)*
                    _ => None,
                }
            }

            pub(super) fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// Arguments with the name, as Redis counts them: negative means at least.
            fn arity(self) -> i64 {
                match self { $(Kind::$variant => $arity,)* }
            }

            /// First key, last key (negative from the end), step; zeros when it has none.
            fn key_positions(self) -> (i64, i64, i64) {
                match self { $(Kind::$variant => ($first, $last, $step),)* }
            }

            fn flags(self) -> &'static str {
                match self { $(Kind::$variant => $flags,)* }
            }

            /// Whether it is about the connection or the node, not about keys.
            pub(super) fn is_about_session(self) -> bool {
                match self { $(Kind::$variant => $about_session,)* }
            }
        }
    };
}

commands! {
    Ping "ping" -1 (0 0 0) "fast" true,
    Echo "echo" 2 (0 0 0) "fast" true,
    Hello "hello" -1 (0 0 0) "noscript loading stale fast no_auth" true,
    Auth "auth" -2 (0 0 0) "noscript loading stale fast no_auth" true,
    Select "select" 2 (0 0 0) "loading stale fast" true,
    Client "client" -2 (0 0 0) "admin noscript" true,
    Acl "acl" -2 (0 0 0) "noscript loading stale" true,
    CommandInfo "command" -1 (0 0 0) "loading stale" true,
    Info "info" -1 (0 0 0) "loading stale" true,
    Quit "quit" -1 (0 0 0) "fast no_auth" true,
    Reset "reset" 1 (0 0 0) "fast no_auth" true,
    Time "time" 1 (0 0 0) "loading stale fast" true,
    Config "config" -2 (0 0 0) "admin noscript loading stale" true,
    StoreUse "tontine.store" -1 (0 0 0) "fast" true,
    Get "get" 2 (1 1 1) "readonly fast" false,
    Set "set" -3 (1 1 1) "write denyoom" false,
    Del "del" -2 (1 -1 1) "write" false,
    Unlink "unlink" -2 (1 -1 1) "write fast" false,
    Exists "exists" -2 (1 -1 1) "readonly fast" false,
    Mget "mget" -2 (1 -1 1) "readonly fast" false,
    Mset "mset" -3 (1 -1 2) "write denyoom" false,
    Setex "setex" 4 (1 1 1) "write denyoom" false,
    Psetex "psetex" 4 (1 1 1) "write denyoom" false,
    Setnx "setnx" 3 (1 1 1) "write denyoom fast" false,
    Getset "getset" 3 (1 1 1) "write denyoom fast" false,
    Getex "getex" -2 (1 1 1) "write fast" false,
    Getdel "getdel" 2 (1 1 1) "write fast" false,
    Getrange "getrange" 4 (1 1 1) "readonly" false,
    Substr "substr" 4 (1 1 1) "readonly" false,
    Touch "touch" -2 (1 -1 1) "readonly fast" false,
    Type "type" 2 (1 1 1) "readonly fast" false,
    Object "object" -2 (2 2 1) "readonly" false,
    Expire "expire" -3 (1 1 1) "write fast" false,
    Pexpire "pexpire" -3 (1 1 1) "write fast" false,
    Expireat "expireat" -3 (1 1 1) "write fast" false,
    Pexpireat "pexpireat" -3 (1 1 1) "write fast" false,
    Expiretime "expiretime" 2 (1 1 1) "readonly fast" false,
    Pexpiretime "pexpiretime" 2 (1 1 1) "readonly fast" false,
    Ttl "ttl" 2 (1 1 1) "readonly fast" false,
    Pttl "pttl" 2 (1 1 1) "readonly fast" false,
    Persist "persist" 2 (1 1 1) "write fast" false,
    Strlen "strlen" 2 (1 1 1) "readonly fast" false,
    Scan "scan" -2 (0 0 0) "readonly" false,
    Keys "keys" 2 (0 0 0) "readonly" false,
    Dbsize "dbsize" 1 (0 0 0) "readonly fast" false,
    Randomkey "randomkey" 1 (0 0 0) "readonly" false,
    VersionsGet "tontine.get" 2 (1 1 1) "readonly" false,
    VersionsPut "tontine.put" -4 (1 1 1) "write denyoom" false,
    VersionsDelete "tontine.delete" 3 (1 1 1) "write" false,
    Siblings "tontine.siblings" 2 (1 1 1) "readonly" false,
}

impl Kind {
    /// Under which operation its latency counts; `None` for what touches no key.
    pub(super) fn operation(self) -> Option<Operation> {
        let is_write = self.flags().split(' ').any(|flag| flag == "write");
        match self {
            _ if self.is_about_session() => None,
            Kind::Mget => Some(Operation::MultiGet),
            Kind::Mset => Some(Operation::MultiPut),
            Kind::Del | Kind::Unlink | Kind::VersionsDelete => Some(Operation::Delete),
            _ if is_write => Some(Operation::Put),
            _ => Some(Operation::Get),
        }
    }

    /// What it does, in a few words.
    pub(super) fn summary(self) -> &'static str {
        match self {
            Kind::Ping => "Answers PONG, or the message.",
            Kind::Echo => "Answers the message.",
            Kind::Hello => "Settles the protocol version, and says who the server is.",
            Kind::Auth => "Authenticates the connection.",
            Kind::Select => "Selects the database; there is one.",
            Kind::Client => "Asks and tells about connections.",
            Kind::Acl => "Tells the user of this connection.",
            Kind::CommandInfo => "Describes the commands.",
            Kind::Info => "Describes the node.",
            Kind::Quit => "Closes the connection.",
            Kind::Reset => "Makes the connection as it was at its start.",
            Kind::Time => "Tells the node's wall clock.",
            Kind::Config => "Tells settings that clients ask for.",
            Kind::StoreUse => "Names or chooses the store of this connection.",
            Kind::Get => "Reads a value.",
            Kind::Set => "Writes a value.",
            Kind::Del | Kind::Unlink => "Deletes keys and counts those that existed.",
            Kind::Exists => "Counts the keys that exist.",
            Kind::Mget => "Reads many values.",
            Kind::Mset => "Writes many values, each for itself.",
            Kind::Setex => "Writes a value that expires after seconds.",
            Kind::Psetex => "Writes a value that expires after milliseconds.",
            Kind::Setnx => "Writes a value if the key does not exist.",
            Kind::Getset => "Writes a value and answers the one before.",
            Kind::Getex => "Reads a value and changes when it expires.",
            Kind::Getdel => "Reads a value and deletes the key.",
            Kind::Getrange | Kind::Substr => "Reads a part of a value.",
            Kind::Touch => "Counts the keys that exist.",
            Kind::Type => "Tells whether a key holds a string or nothing.",
            Kind::Object => "Tells how Redis would encode a value.",
            Kind::Expireat => "Lets a key expire at a second since the epoch.",
            Kind::Pexpireat => "Lets a key expire at a millisecond since the epoch.",
            Kind::Expiretime => "Tells the second at which a key expires.",
            Kind::Pexpiretime => "Tells the millisecond at which a key expires.",
            Kind::Expire => "Lets a key expire after seconds.",
            Kind::Pexpire => "Lets a key expire after milliseconds.",
            Kind::Ttl => "Tells the seconds until a key expires.",
            Kind::Pttl => "Tells the milliseconds until a key expires.",
            Kind::Persist => "Lets a key live for ever.",
            Kind::Strlen => "Tells the length of a value.",
            Kind::Scan => "Hands out the keys page by page.",
            Kind::Keys => "Names the keys that match, of a store that is not too large.",
            Kind::Dbsize => "Counts the keys, more than 10,000 of them by estimate.",
            Kind::Randomkey => "Names one of the keys.",
            Kind::VersionsGet => "Reads a context and every concurrent value.",
            Kind::VersionsPut => "Replaces exactly what a context covers.",
            Kind::VersionsDelete => "Deletes exactly what a context covers.",
            Kind::Siblings => "Describes every concurrent version.",
        }
    }

    /// The refusal for a wrong number of arguments.
    pub(super) fn check_arity(self, command: &Command) -> Option<DoorReply> {
        let count = i64::try_from(command.len()).unwrap_or(i64::MAX);
        let arity = self.arity();
        let fits = if arity < 0 { count >= -arity } else { count == arity };
        let whole_pairs = self != Kind::Mset || command.len() % 2 == 1;
        (!fits || !whole_pairs).then(|| DoorReply::arity(self.name()))
    }

    /// The refusal for more arguments than the longest command has, which are gone.
    pub(super) fn too_long(self, command: &Command) -> DoorReply {
        let (_, last, step) = self.key_positions();
        let step = usize::try_from(step).unwrap_or(1).max(1);
        if last >= 0 || !command.dropped().is_multiple_of(step) {
            return DoorReply::arity(self.name());
        }
        let keys = command.dropped() / step;
        let detail = format!("{keys} keys in one request exceed the limit of {MULTI_KEYS_MAX}");
        DoorReply::failure(&Failure::new(ErrorCode::TooManyKeys, detail))
    }

    /// Whether it may be sent before AUTH.
    pub(super) fn allowed_unauthenticated(self) -> bool {
        self.flags().contains("no_auth")
    }

    /// The rights that it needs, about each of its keys, or about all keys of the store where it names none.
    pub(super) fn rights(self, command: &Command) -> &'static [Right] {
        let reads_too = || command.args().skip(3).any(|word| word.eq_ignore_ascii_case(b"GET"));
        match self {
            Kind::Scan | Kind::Keys | Kind::Dbsize | Kind::Randomkey => &[Right::Scan],
            Kind::Getset | Kind::Getex | Kind::Getdel => &[Right::Read, Right::Write],
            Kind::Set if reads_too() => &[Right::Read, Right::Write],
            _ if self.flags().split(' ').any(|flag| flag == "write") => &[Right::Write],
            _ => &[Right::Read],
        }
    }

    /// What it has to do with: commands that have the same keys to do with wait for each other. One without keys may be
    /// about every key that there is.
    pub(super) fn touches(self, command: &Command) -> Touches {
        let mut keys = self.keys(command).map(Token::of).peekable();
        if self.is_about_session() || keys.peek().is_none() {
            return Touches::Everything;
        }
        Touches::Keys(keys.collect(), if self.only_reads() { Access::Read } else { Access::Write })
    }

    /// Whether it may be carried out again as long as it is not answered.
    pub(super) fn only_reads(self) -> bool {
        self.flags().split(' ').any(|flag| flag == "readonly")
    }

    /// Whether it neither changes anything nor tells of anything that may change.
    pub(super) fn is_answered_at_any_time(self) -> bool {
        matches!(self, Kind::Ping | Kind::Echo)
    }

    /// The keys among its arguments.
    pub(super) fn keys(self, command: &Command) -> impl Iterator<Item = &[u8]> {
        let (first, last, step) = self.key_positions();
        let count = i64::try_from(command.len()).unwrap_or(0);
        let last = if last < 0 { count + last } else { last };
        let positions = (first.max(1)..=last).step_by(usize::try_from(step).unwrap_or(1).max(1));
        let positions = if first == 0 { None } else { Some(positions) };
        positions.into_iter().flatten().filter_map(|at| command.arg(usize::try_from(at).ok()?))
    }
}

/// Carries out a command on keys.
pub(super) async fn run(front: &Arc<Front>, store: &str, kind: Kind, command: &Command) -> DoorReply {
    for key in kind.keys(command) {
        if let Err(error) = Key::check(key) {
            return DoorReply::err(error);
        }
    }
    let call = CommandCall { front, store, kind, command };
    let answer = match kind {
        Kind::Get => strings::get(&call).await,
        Kind::Set => strings::set(&call).await,
        Kind::Setex | Kind::Psetex => strings::setex(&call).await,
        Kind::Setnx => strings::setnx(&call).await,
        Kind::Getset => strings::getset(&call).await,
        Kind::Getdel => strings::getdel(&call).await,
        Kind::Getrange | Kind::Substr => strings::getrange(&call).await,
        Kind::Mget => strings::mget(&call).await,
        Kind::Mset => strings::mset(&call).await,
        Kind::Strlen => strings::strlen(&call).await,
        Kind::Del | Kind::Unlink => keys::del(&call).await,
        Kind::Exists | Kind::Touch => keys::exists(&call).await,
        Kind::Type => object::type_of(&call).await,
        Kind::Object => object::object(&call).await,
        Kind::Expire | Kind::Pexpire | Kind::Expireat | Kind::Pexpireat => expiry::expire(&call).await,
        Kind::Ttl | Kind::Pttl | Kind::Expiretime | Kind::Pexpiretime => expiry::ttl(&call).await,
        Kind::Getex => expiry::getex(&call).await,
        Kind::Persist => expiry::persist(&call).await,
        Kind::Scan => walk::scan(&call).await,
        Kind::Keys => walk::keys(&call).await,
        Kind::Dbsize => walk::dbsize(&call).await,
        Kind::Randomkey => walk::randomkey(&call).await,
        Kind::VersionsGet => versions::get(&call).await,
        Kind::VersionsPut => versions::put(&call).await,
        Kind::VersionsDelete => versions::delete(&call).await,
        Kind::Siblings => versions::siblings(&call).await,
        _ => Err(DoorReply::err("this command is about the connection")),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

/// Redis's own answer to a command that it does not know; for one of Redis's that is refused on purpose, with the
/// reason and what to use instead.
pub(super) fn unknown(command: &Command) -> DoorReply {
    if let Some(why) = refused::why(command.name()) {
        let name = String::from_utf8_lossy(command.name()).to_ascii_uppercase();
        return DoorReply::Error(format!("ERR unknown command '{name}': {why}"));
    }
    let shown = |bytes: &[u8]| -> String {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(128)]);
        text.chars().map(|c| if c == '\r' || c == '\n' { ' ' } else { c }).collect()
    };
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(command.name()));
    for argument in command.args().skip(1).take(20) {
        if text.len() >= 128 {
            break;
        }
        text.push_str(&format!("'{}' ", shown(argument)));
    }
    DoorReply::Error(text)
}

/// One command under way.
struct CommandCall<'a> {
    front: &'a Arc<Front>,
    store: &'a str,
    kind: Kind,
    command: &'a Command,
}

impl CommandCall<'_> {
    /// An argument that the arity promises.
    fn bytes(&self, position: usize) -> Bytes {
        self.command.bytes(position).expect("the number of arguments was checked")
    }

    /// The arguments from this position on.
    fn rest(&self, position: usize) -> Vec<Bytes> {
        (position..self.command.len()).map(|at| self.bytes(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Command {
        let mut bytes = bytes::BytesMut::new();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Command::encode(&words, &mut bytes);
        let mut parser = wire::resp::CommandParser::new(wire::resp::CommandLimits::DEFAULT);
        parser.parse(&mut bytes).unwrap().unwrap()
    }

    #[test]
    fn commands_are_found_in_any_case_and_unknown_names_are_not() {
        assert_eq!(Kind::of(b"gEt"), Some(Kind::Get));
        assert_eq!(Kind::of(b"TONTINE.SIBLINGS"), Some(Kind::Siblings));
        assert_eq!(Kind::of(b"getx"), None);
        assert_eq!(Kind::of(&[b'x'; 400]), None);
        assert!(Kind::ALL.iter().all(|kind| Kind::of(kind.name().as_bytes()) == Some(*kind)));
    }

    #[test]
    fn keys_are_found_where_redis_says() {
        let keys = |words: &[&str]| -> Vec<String> {
            let command = command(words);
            let kind = Kind::of(command.name()).unwrap();
            kind.keys(&command).map(|key| String::from_utf8_lossy(key).into_owned()).collect()
        };
        assert_eq!(keys(&["MSET", "a", "1", "b", "2"]), ["a", "b"]);
        assert_eq!(keys(&["DEL", "a", "b", "c"]), ["a", "b", "c"]);
        assert_eq!(keys(&["SET", "a", "b", "EX", "5"]), ["a"]);
        assert!(keys(&["PING", "a"]).is_empty());
    }

    #[test]
    fn a_wrong_number_of_arguments_is_refused_in_the_words_of_redis() {
        let refusal = |words: &[&str]| {
            let command = command(words);
            Kind::of(command.name()).unwrap().check_arity(&command)
        };
        assert_eq!(refusal(&["GET"]), Some(DoorReply::arity("get")));
        assert_eq!(refusal(&["GET", "a", "b"]), Some(DoorReply::arity("get")));
        assert_eq!(refusal(&["MSET", "a", "1", "b"]), Some(DoorReply::arity("mset")));
        assert_eq!(refusal(&["MSET", "a", "1"]), None);
        assert_eq!(refusal(&["PING"]), None);
    }
}
