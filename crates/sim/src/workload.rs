//! Clients at work: real `client::Client`s, one operation at a time each, every step recorded.
//!
//! In the store that keeps siblings every write names its context (or says that it has none), so that true causality
//! is known; in the store that keeps the last write most writes overwrite, as a Redis client's do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, ClientOptions, DeleteOptions, Found, PutOptions, StoreHandle};
use model::{Context, Moment};
use runtime::Ports;
use wire::messages::{RequestOptions, Written};

use crate::check::siblings;
use crate::cluster::{STORES, World};
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::history::{Action, Basis, Operation, OperationId, Outcome, Recorder};
use crate::network::Host;
use crate::plant::Plant;

/// Pause before a client that could not connect tries again.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);

/// How long values live that expire, in milliseconds.
pub const TTLS_MS: [u64; 3] = [200, 1500, 5000];

/// One client and what it remembers.
pub struct Worker {
    world: Arc<World>,
    recorder: Recorder,
    number: u32,
    ports: Ports,
    dice: Dice,
    written: u64,
    /// The last context that it was handed for each key.
    contexts: BTreeMap<(&'static str, Bytes), (OperationId, Context)>,
}

impl Worker {
    /// A client on a host of its own.
    pub fn new(world: Arc<World>, recorder: Recorder, number: u32, process: ProcessId) -> Worker {
        let ports = world.ports(Host(100 + number), process, Arc::new(WallClock::default()));
        let dice = Dice::apart(world.setup.seed, 100 + u64::from(number));
        Worker { world, recorder, number, ports, dice, written: 0, contexts: BTreeMap::new() }
    }

    /// Works until `end`.
    pub async fn work(mut self, end: Moment) {
        let client = self.connect().await;
        while self.ports.clock.now() < end {
            let store = *self.dice.pick(&STORES);
            let key = key(self.dice.below(u64::from(self.world.setup.keys)) as u32);
            let handle = client.store(store).expect("the cluster has the store");
            self.operate(&handle, store, key).await;
            let think = self.dice.below(self.world.setup.think.as_micros() as u64 + 1);
            self.ports.clock.sleep(Duration::from_micros(think)).await;
        }
        client.close();
    }

    /// Reads every key until it is answered, as the last word of a run.
    ///
    /// # Errors
    /// Names a key that could not be read before `end`.
    pub async fn read_all(mut self, end: Moment) -> Result<(), String> {
        let client = self.connect().await;
        for &store in self.world.clone().stores() {
            let handle = client.store(store).expect("the cluster has the store");
            for number in 0..self.world.setup.keys {
                while !self.get(&handle, store, key(number)).await {
                    if self.ports.clock.now() > end {
                        return Err(format!("{store}/k{number} cannot be read after healing"));
                    }
                    self.ports.clock.sleep(CONNECT_AGAIN).await;
                }
            }
        }
        client.close();
        Ok(())
    }

    async fn connect(&mut self) -> Client {
        let mut addresses = self.world.addresses();
        let first = self.dice.below(addresses.len() as u64) as usize;
        addresses.rotate_left(first);
        loop {
            let spread = Dice::apart(self.world.setup.seed, 3000 + u64::from(self.number)).chance(500);
            let options = ClientOptions {
                spread,
                name: format!("c{}", self.number),
                deadline: self.world.setup.deadline,
                repairs_max: self.world.setup.repairs_max(),
                ..ClientOptions::default()
            };
            match Client::connect(&addresses, self.ports.clone(), options).await {
                Ok(client) => return client,
                Err(_) => self.ports.clock.sleep(CONNECT_AGAIN).await,
            }
        }
    }

    async fn operate(&mut self, handle: &StoreHandle, store: &'static str, key: Bytes) {
        let draw = self.dice.below(1000);
        let (puts, deletes) = (self.world.setup.puts, self.world.setup.deletes);
        let many = self.world.setup.keys > 1 && self.dice.chance(60);
        if many && draw >= puts + deletes {
            self.multi_get(handle, store).await;
        } else if many && store != siblings::STORE {
            self.multi_put(handle, store).await;
        } else if draw >= puts + deletes {
            self.get(handle, store, key).await;
        } else {
            let action = if draw < puts { Action::Put(self.value()) } else { Action::Delete };
            self.write(handle, store, key, action).await;
        }
    }

    /// A value that nobody else writes.
    fn value(&mut self) -> Bytes {
        self.written += 1;
        let mut value = format!("value-c{}-{}-", self.number, self.written).into_bytes();
        let bytes = *self.dice.pick(&[0, 10, 100, 1000]);
        value.resize(value.len() + bytes, b'.');
        value.into()
    }

    async fn get(&mut self, handle: &StoreHandle, store: &'static str, key: Bytes) -> bool {
        let id = self.begin(store, &key, Action::Get, Basis::Overwrite, None);
        let (outcome, context) = match handle.get(key.clone()).await {
            Ok(found) => self.got(id, &found),
            Err(error) => (refused(&error), None),
        };
        let answered = context.is_some();
        self.end(id, store, key, outcome, context);
        answered
    }

    /// Reads all keys in one request.
    async fn multi_get(&mut self, handle: &StoreHandle, store: &'static str) {
        let keys: Vec<Bytes> = (0..self.world.setup.keys).map(key).collect();
        let begin = |key: &Bytes| self.begin(store, key, Action::Get, Basis::Overwrite, None);
        let ids: Vec<OperationId> = keys.iter().map(begin).collect();
        let answers = handle.multi_get(keys.clone(), &RequestOptions::default()).await;
        let answers = each(answers, keys.len());
        for ((id, key), answer) in ids.into_iter().zip(keys).zip(answers) {
            let (outcome, context) = match answer {
                Ok(found) => self.got(id, &found),
                Err(error) => (refused(&error), None),
            };
            self.end(id, store, key, outcome, context);
        }
    }

    /// Overwrites all keys in one request.
    async fn multi_put(&mut self, handle: &StoreHandle, store: &'static str) {
        let entries: Vec<(Bytes, Bytes)> =
            (0..self.world.setup.keys).map(|number| (key(number), self.value())).collect();
        let begin = |(key, value): &(Bytes, Bytes)| {
            self.begin(store, key, Action::Put(value.clone()), Basis::Overwrite, None)
        };
        let ids: Vec<OperationId> = entries.iter().map(begin).collect();
        let answers = handle.multi_put(entries.clone(), &RequestOptions::default()).await;
        let answers = each(answers, entries.len());
        for ((id, (key, _)), answer) in ids.into_iter().zip(entries).zip(answers) {
            let (outcome, context) = written(answer);
            self.end(id, store, key, outcome, context);
        }
    }

    async fn write(&mut self, handle: &StoreHandle, store: &'static str, key: Bytes, action: Action) {
        let (basis, context) = self.basis(store, &key);
        let ttl = if action == Action::Delete { None } else { self.ttl() };
        let id = self.begin(store, &key, action.clone(), basis, ttl);
        let answer = match action {
            Action::Put(value) => {
                let options = PutOptions { context, ttl, ..PutOptions::default() };
                handle.put(key.clone(), value, options).await
            }
            _ => handle.delete(key.clone(), DeleteOptions { context, ..DeleteOptions::default() }).await,
        };
        let (outcome, context) = written(answer);
        self.end(id, store, key, outcome, context);
    }

    /// What a get's answer says, and the context for the next write.
    fn got(&self, id: OperationId, found: &Found) -> (Outcome, Option<Context>) {
        self.recorder.show(id, found.values().cloned().collect());
        (Outcome::Got(found.set().clone()), Some(found.context()))
    }

    /// How long the next value lives, in runs where some expire.
    fn ttl(&mut self) -> Option<Duration> {
        let expiring = self.world.setup.expiring;
        (expiring > 0 && self.dice.chance(expiring)).then(|| Duration::from_millis(*self.dice.pick(&TTLS_MS)))
    }

    /// What the next write replaces, as the history will say, and the context that is really sent.
    fn basis(&mut self, store: &'static str, key: &Bytes) -> (Basis, Option<Context>) {
        let known = self.contexts.get(&(store, key.clone())).cloned();
        let blind = self.dice.chance(self.world.setup.blind);
        match known {
            _ if store != siblings::STORE && !self.dice.chance(300) => (Basis::Overwrite, None),
            Some((source, context)) if !blind => match self.world.setup.plant {
                Some(Plant::DroppedContext) => (Basis::After(source), Some(Context::default())),
                Some(Plant::ForgottenRead) => (Basis::After(source), None),
                _ => (Basis::After(source), Some(context)),
            },
            _ => (Basis::Blind, Some(Context::default())),
        }
    }

    fn begin(
        &self,
        store: &'static str,
        key: &Bytes,
        action: Action,
        basis: Basis,
        ttl: Option<Duration>,
    ) -> OperationId {
        let now = self.ports.clock.now();
        self.recorder.begin(Operation {
            client: self.number,
            store,
            key: key.clone(),
            action,
            basis,
            expires: ttl.map(|ttl| now.after(ttl)),
            shown_until: ttl.map(|ttl| now.after(ttl)),
            shown: Vec::new(),
            invoked: now,
            returned: None,
            outcome: Outcome::Pending,
        })
    }

    fn end(
        &mut self,
        id: OperationId,
        store: &'static str,
        key: Bytes,
        outcome: Outcome,
        context: Option<Context>,
    ) {
        self.recorder.end(id, self.ports.clock.now(), outcome);
        if let Some(context) = context {
            self.contexts.insert((store, key), (id, context));
        }
    }
}

/// Each entry's own answer; an error of the whole request is everybody's.
fn each<T>(
    answers: Result<Vec<Result<T, ClientError>>, ClientError>,
    count: usize,
) -> Vec<Result<T, ClientError>> {
    match answers {
        Ok(answers) => answers,
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

/// What the history says of a write, and the context for the next one.
fn written(answer: Result<Written, ClientError>) -> (Outcome, Option<Context>) {
    match answer {
        Ok(Written { dot, acks, sloppy, context }) => {
            (Outcome::Written { dot, context: context.clone(), acks, sloppy }, Some(context))
        }
        Err(error) => (refused(&error), None),
    }
}

/// The key with this number.
pub fn key(number: u32) -> Bytes {
    format!("k{number}").into()
}

fn refused(error: &ClientError) -> Outcome {
    match error.is_indeterminate() {
        true => Outcome::Indeterminate(error.to_string()),
        false => Outcome::Failed(error.to_string()),
    }
}
