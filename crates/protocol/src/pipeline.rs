//! Which commands of one connection may be under way together, and when each is answered.
//!
//! ```text
//!   enter ──▶ waits for earlier commands on its keys ── start ──▶ under way ── done ──▶ next_answer, in order
//! ```
//!
//! Commands take effect in the order sent wherever that can be seen: one that writes a key waits for every earlier
//! command on that key, one that reads it waits for the earlier ones that write it. All others go side by side, also
//! past one that waits. A command that may touch any key, or that changes the connection, runs alone.
//!
//! Keys are told apart by their tokens. Two keys with the same token merely wait for each other.
//!
//! **Architecture Invariant:** an answer never leaves before the answers of all earlier commands.

use std::collections::{BTreeMap, VecDeque};

use model::Token;
use smallvec::SmallVec;

/// Most commands of one connection that have come and are not answered. Enough that a message to another node costs
/// little for each of them, few enough that their answers can be held.
pub const COMMANDS_MAX: usize = 128;

/// Once so many bytes of commands are not done, no further command comes in. Values that are sent to replicas side by
/// side arrive side by side, each as late as the last: sixty-four of 1 MiB missed their deadlines together.
pub const UNFINISHED_BYTES_MAX: usize = 4 << 20;

/// What a command does with its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads them.
    Read,
    /// It may change them.
    Write,
}

/// What a command has to do with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touches {
    /// These keys, and no others.
    Keys(SmallVec<[Token; 1]>, Access),
    /// Any key, or the connection itself: it runs alone.
    Everything,
}

/// The commands of one connection that are not answered yet, each a `C` until it starts and an `A` when it is done.
#[derive(Debug)]
pub struct Pipeline<C, A> {
    /// Number of the first in `commands`.
    first: u64,
    /// In the order in which they came.
    commands: VecDeque<Stage<C, A>>,
    /// Who is at a key, and who waits there. A key that nobody touches is absent.
    lines: BTreeMap<Token, KeyQueue>,
    /// May begin now, in the order in which that became true.
    startable: VecDeque<u64>,
    /// Those that are not done.
    unfinished: usize,
    /// Bytes of those.
    unfinished_bytes: usize,
    /// The one that runs alone, when there is one; it is the last that came.
    alone: Option<u64>,
}

#[derive(Debug)]
enum Stage<C, A> {
    /// `lacking` counts the keys at which it still waits.
    Waiting { command: C, touches: Touches, bytes: usize, lacking: usize },
    /// Under way.
    Started { touches: Touches, bytes: usize },
    /// Answered, in its turn.
    Done(A),
}

/// One key.
#[derive(Debug, Default)]
struct KeyQueue {
    /// Commands that may touch it now: any number that read, or one that writes.
    at_it: usize,
    writes: bool,
    waiting: VecDeque<(u64, Access)>,
}

impl KeyQueue {
    /// Lets a command at the key, or has it wait; whether it is let.
    fn join(&mut self, number: u64, access: Access) -> bool {
        let let_in = self.waiting.is_empty() && self.admits(access);
        match let_in {
            true => self.occupy(access),
            false => self.waiting.push_back((number, access)),
        }
        let_in
    }

    fn admits(&self, access: Access) -> bool {
        self.at_it == 0 || (!self.writes && access == Access::Read)
    }

    fn occupy(&mut self, access: Access) {
        self.at_it += 1;
        self.writes = access == Access::Write;
    }

    /// One at the key is done; the next that waits, as far as it may come.
    fn leave(&mut self) {
        self.at_it = self.at_it.checked_sub(1).expect("a command leaves a key that it was at");
    }

    fn let_next(&mut self) -> Option<u64> {
        let &(number, access) = self.waiting.front()?;
        if !self.admits(access) {
            return None;
        }
        self.waiting.pop_front();
        self.occupy(access);
        Some(number)
    }

    fn is_empty(&self) -> bool {
        self.at_it == 0 && self.waiting.is_empty()
    }
}

impl<C, A> Default for Pipeline<C, A> {
    fn default() -> Self {
        Pipeline {
            first: 0,
            commands: VecDeque::new(),
            lines: BTreeMap::new(),
            startable: VecDeque::new(),
            unfinished: 0,
            unfinished_bytes: 0,
            alone: None,
        }
    }
}

impl<C, A> Pipeline<C, A> {
    /// Whether another command may come in.
    pub fn has_room(&self) -> bool {
        let few = self.commands.len() < COMMANDS_MAX && self.unfinished_bytes < UNFINISHED_BYTES_MAX;
        few && self.alone.is_none()
    }

    /// The number of the first command that is not answered, or of the next that will come.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Whether every command is answered.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Takes in the next command, of this many bytes.
    ///
    /// # Panics
    /// Without room.
    pub fn enter(&mut self, mut touches: Touches, bytes: usize, command: C) {
        assert!(self.has_room(), "a command came in without room");
        let number = self.first + self.commands.len() as u64;
        let lacking = match &mut touches {
            Touches::Keys(keys, access) => {
                keys.sort_unstable();
                keys.dedup();
                let lines = &mut self.lines;
                keys.iter().filter(|key| !lines.entry(**key).or_default().join(number, *access)).count()
            }
            Touches::Everything => {
                self.alone = Some(number);
                usize::from(self.unfinished > 0)
            }
        };
        self.commands.push_back(Stage::Waiting { command, touches, bytes, lacking });
        self.unfinished += 1;
        self.unfinished_bytes += bytes;
        if lacking == 0 {
            self.startable.push_back(number);
        }
    }

    /// Takes in a command that has its answer already.
    ///
    /// # Panics
    /// Without room.
    pub fn enter_answered(&mut self, answer: A) {
        assert!(self.has_room(), "a command came in without room");
        self.commands.push_back(Stage::Done(answer));
    }

    /// The next command that may begin, with its number.
    pub fn start(&mut self) -> Option<(u64, C)> {
        let number = self.startable.pop_front()?;
        let stage = self.stage(number);
        let taken = std::mem::replace(stage, Stage::Started { touches: Touches::Everything, bytes: 0 });
        let Stage::Waiting { command, touches, bytes, lacking: 0 } = taken else {
            panic!("command {number} begins twice, or before its keys are free")
        };
        *stage = Stage::Started { touches, bytes };
        Some((number, command))
    }

    /// A command that was started is done.
    ///
    /// # Panics
    /// When it was not started, or is done already.
    pub fn done(&mut self, number: u64, answer: A) {
        let Stage::Started { touches, bytes } = std::mem::replace(self.stage(number), Stage::Done(answer))
        else {
            panic!("command {number} is done and was not under way")
        };
        self.unfinished -= 1;
        self.unfinished_bytes -= bytes;
        match touches {
            Touches::Keys(keys, _) => keys.into_iter().for_each(|key| self.leave(key)),
            Touches::Everything => self.alone = None,
        }
        // Nothing comes in behind one that runs alone, so the one that is left is that one.
        if let (Some(alone), 1) = (self.alone, self.unfinished) {
            self.come_nearer(alone);
        }
    }

    /// The oldest command's answer, when it is done.
    pub fn next_answer(&mut self) -> Option<A> {
        if !matches!(self.commands.front(), Some(Stage::Done(_))) {
            return None;
        }
        let Some(Stage::Done(answer)) = self.commands.pop_front() else { unreachable!("it was just seen") };
        self.first += 1;
        Some(answer)
    }

    fn leave(&mut self, key: Token) {
        let line = self.lines.get_mut(&key).expect("a key that somebody is at has a line");
        line.leave();
        let mut let_in: SmallVec<[u64; 4]> = SmallVec::new();
        while let Some(next) = line.let_next() {
            let_in.push(next);
        }
        if line.is_empty() {
            self.lines.remove(&key);
        }
        let_in.into_iter().for_each(|next| self.come_nearer(next));
    }

    /// One of those things that a command waits for has come.
    fn come_nearer(&mut self, number: u64) {
        let Stage::Waiting { lacking, .. } = self.stage(number) else {
            panic!("command {number} waits for a key and has begun")
        };
        *lacking -= 1;
        if *lacking == 0 {
            self.startable.push_back(number);
        }
    }

    fn stage(&mut self, number: u64) -> &mut Stage<C, A> {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.commands.get_mut(at)).expect("only unanswered commands are spoken of")
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn reads(keys: &[u64]) -> Touches {
        Touches::Keys(keys.iter().map(|&key| Token(key)).collect(), Access::Read)
    }

    fn writes(keys: &[u64]) -> Touches {
        Touches::Keys(keys.iter().map(|&key| Token(key)).collect(), Access::Write)
    }

    fn started(pipeline: &mut Pipeline<usize, usize>) -> Vec<u64> {
        std::iter::from_fn(|| pipeline.start()).map(|(number, _)| number).collect()
    }

    fn answers(pipeline: &mut Pipeline<usize, usize>) -> Vec<usize> {
        std::iter::from_fn(|| pipeline.next_answer()).collect()
    }

    #[test]
    fn commands_on_other_keys_pass_one_that_waits_and_answers_keep_their_order() {
        let mut pipeline = Pipeline::default();
        for (at, touches) in
            [writes(&[1]), reads(&[1]), writes(&[2]), reads(&[1]), writes(&[1])].into_iter().enumerate()
        {
            pipeline.enter(touches, 1, at);
        }
        assert!(!pipeline.is_empty());
        assert_eq!(started(&mut pipeline), [0, 2]);
        pipeline.done(2, 2);
        assert!(answers(&mut pipeline).is_empty(), "an earlier one is under way");
        pipeline.done(0, 0);
        assert_eq!(answers(&mut pipeline), [0]);
        assert_eq!(started(&mut pipeline), [1, 3], "those that read go together");
        pipeline.done(3, 3);
        assert!(started(&mut pipeline).is_empty(), "the write waits for both");
        pipeline.done(1, 1);
        assert_eq!(answers(&mut pipeline), [1, 2, 3]);
        assert_eq!(started(&mut pipeline), [4]);
        pipeline.done(4, 4);
        assert_eq!(answers(&mut pipeline), [4]);
        assert!(pipeline.is_empty() && pipeline.lines.is_empty());
    }

    #[test]
    fn a_key_named_twice_does_not_wait_for_itself() {
        let mut pipeline = Pipeline::<usize, usize>::default();
        pipeline.enter(writes(&[7, 8, 7]), 1, 0);
        assert_eq!(started(&mut pipeline), [0]);
        pipeline.done(0, 0);
        assert!(pipeline.lines.is_empty());
    }

    #[test]
    fn what_runs_alone_waits_for_all_before_it_and_lets_none_in_behind_it() {
        let mut pipeline = Pipeline::default();
        pipeline.enter(reads(&[1]), 1, 0);
        pipeline.enter_answered(1);
        pipeline.enter(Touches::Everything, 1, 2);
        assert_eq!((started(&mut pipeline), pipeline.has_room()), (vec![0], false));
        pipeline.done(0, 0);
        assert_eq!(started(&mut pipeline), [2]);
        assert!(!pipeline.has_room());
        pipeline.done(2, 2);
        assert!(pipeline.has_room());
        assert_eq!(answers(&mut pipeline), [0, 1, 2]);
        pipeline.enter(Touches::Everything, 1, 3);
        assert_eq!(started(&mut pipeline), [3], "nothing is before it");
    }

    #[test]
    fn there_is_room_up_to_the_limit_and_no_further() {
        let mut pipeline = Pipeline::<usize, usize>::default();
        for at in 0..COMMANDS_MAX {
            pipeline.enter(writes(&[at as u64]), 1, at);
        }
        assert!(!pipeline.has_room());
        assert_eq!(started(&mut pipeline).len(), COMMANDS_MAX);
        pipeline.done(1, 1);
        assert!(!pipeline.has_room(), "its answer is still held");
        pipeline.done(0, 0);
        assert_eq!(answers(&mut pipeline), [0, 1]);
        assert!(pipeline.has_room());
    }

    #[test]
    fn large_commands_wait_outside_until_those_before_them_are_done() {
        let mut pipeline = Pipeline::<usize, usize>::default();
        pipeline.enter(writes(&[1]), UNFINISHED_BYTES_MAX - 1, 0);
        assert!(pipeline.has_room());
        pipeline.enter(writes(&[1]), 16 << 20, 1);
        assert!(!pipeline.has_room());
        started(&mut pipeline);
        pipeline.done(0, 0);
        assert!(!pipeline.has_room(), "the larger one is not done");
        assert_eq!(started(&mut pipeline), [1]);
        pipeline.done(1, 1);
        assert!(pipeline.has_room(), "answers that wait are counted by their holders");
        pipeline.enter(writes(&[1]), UNFINISHED_BYTES_MAX, 2);
        assert!(!pipeline.has_room(), "exactly as many are enough");
    }

    /// What the model knows of a command.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Is {
        Waiting,
        UnderWay,
        Done,
    }

    fn conflict(earlier: &Touches, later: &Touches) -> bool {
        let (Touches::Keys(a, earlier), Touches::Keys(b, later)) = (earlier, later) else { return true };
        let both_read = *earlier == Access::Read && *later == Access::Read;
        !both_read && a.iter().any(|key| b.contains(key))
    }

    /// Every pipeline of four commands over two keys, done in every order: a command is under way exactly when no
    /// earlier one that conflicts with it is unfinished, and answers come in order, as soon as they can.
    #[test]
    fn every_short_pipeline_in_every_order_keeps_the_rules() {
        let kinds = [
            reads(&[1]),
            writes(&[1]),
            reads(&[2]),
            writes(&[2]),
            reads(&[1, 2]),
            writes(&[1, 2]),
            Touches::Keys(smallvec![], Access::Read),
        ];
        let mut explored = 0;
        for code in 0..kinds.len().pow(4) {
            let commands: Vec<&Touches> =
                (0..4).map(|at| &kinds[code / kinds.len().pow(at) % kinds.len()]).collect();
            // Which of those under way is done next, by turns; 4! is more orders than there can be.
            for order in 0..24_usize {
                explored += 1;
                play(&commands, order);
            }
        }
        assert_eq!(explored, 7_usize.pow(4) * 24);
    }

    fn play(commands: &[&Touches], mut order: usize) {
        let mut pipeline = Pipeline::default();
        let mut are = vec![Is::Waiting; commands.len()];
        let mut answered = 0;
        for (at, touches) in commands.iter().enumerate() {
            pipeline.enter((*touches).clone(), 1, at);
        }
        for left in (1..=commands.len()).rev() {
            while let Some((number, command)) = pipeline.start() {
                assert_eq!((number as usize, are[command]), (command, Is::Waiting));
                are[command] = Is::UnderWay;
            }
            for (at, &is) in are.iter().enumerate() {
                let blocked = (0..at)
                    .any(|earlier| are[earlier] != Is::Done && conflict(commands[earlier], commands[at]));
                assert_eq!(is == Is::Waiting, blocked, "{commands:?} {are:?}");
            }
            let under_way: Vec<usize> = (0..are.len()).filter(|&at| are[at] == Is::UnderWay).collect();
            let finished = under_way[order % left % under_way.len()];
            order /= left;
            pipeline.done(finished as u64, finished);
            are[finished] = Is::Done;
            while let Some(answer) = pipeline.next_answer() {
                assert_eq!(answer, answered);
                answered += 1;
            }
            let first_unfinished = are.iter().position(|is| *is != Is::Done).unwrap_or(are.len());
            assert_eq!(answered, first_unfinished, "an answer is held back");
        }
        assert!(pipeline.is_empty() && pipeline.lines.is_empty());
    }
}
