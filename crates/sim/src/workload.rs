//! Clients at work: real `client::Client`s, one operation at a time each, every step recorded.
//!
//! In the store that keeps siblings every write names its context (or says that it has none), so that true causality
//! is known; in the store that keeps the last write most writes overwrite, as a Redis client's do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, ClientOptions, DeleteOptions, Found, PutOptions, StoreHandle};
use model::limits::VALUE_BYTES_MAX;
use model::{Cluster, Context, Moment, NodeId, PartitionId, Resolver, Token, VersionSet};
use runtime::Ports;
use wire::messages::{Condition, RequestOptions, Written};

use crate::check::siblings;
use crate::cluster::{STORES, World};
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::history::{Action, Basis, Operation, OperationId, Outcome, Recorder};
use crate::host::Host;
use crate::plant::Plant;

/// Pause before a client that could not connect tries again.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);

/// How long a healed cluster has to answer a get of any one key.
const KEY_RECOVERY: Duration = Duration::from_secs(10);

/// Most keys of a request of many, and records of a page of a walk: several requests for a partition.
pub const MANY_MAX: u64 = 12;

/// How long values live that expire, in milliseconds.
pub const TTLS_MS: [u64; 3] = [200, 1500, 5000];

/// One client and what it remembers.
pub struct Worker {
    world: Arc<World>,
    recorder: Recorder,
    number: u32,
    ports: Ports,
    dice: Dice,
    /// For what only some runs have, so that it does not move the rest.
    extras: Dice,
    /// For the quorums of each request's own.
    quorums: Dice,
    /// For values that are too long.
    lengths: Dice,
    written: u64,
    /// The last context that it was handed for each key.
    contexts: BTreeMap<(&'static str, Bytes), (OperationId, Context)>,
}

impl Worker {
    /// A client on its own host.
    pub fn new(world: Arc<World>, recorder: Recorder, number: u32, process: ProcessId) -> Worker {
        let ports = world.ports(Host(100 + number), process, Arc::new(WallClock::default()));
        let dice = Dice::apart(world.setup.seed, 100 + u64::from(number));
        let extras = Dice::apart(world.setup.seed, 4000 + u64::from(number));
        let quorums = Dice::apart(world.setup.seed, 5000 + u64::from(number));
        let lengths = Dice::apart(world.setup.seed, 6000 + u64::from(number));
        let contexts = BTreeMap::new();
        Worker { world, recorder, number, ports, dice, extras, quorums, lengths, written: 0, contexts }
    }

    /// Works until `end`.
    pub async fn work(mut self, end: Moment) {
        let client = self.connect().await;
        while self.ports.clock.now() < end {
            let store = *self.dice.pick(&STORES);
            let number = self.dice.below(u64::from(self.world.setup.keys)) as u32;
            let key = self.world.setup.key(number);
            let handle = client.store(store).expect("the cluster has the store");
            match self.extras.chance(self.world.setup.walks) {
                true => self.walk(&client.cluster(), &handle, store, &key).await,
                false => self.operate(&handle, store, key).await,
            }
            let think = self.dice.below(self.world.setup.think.as_micros() as u64 + 1);
            self.ports.clock.sleep(Duration::from_micros(think)).await;
        }
        client.close();
    }

    /// Reads every key until it is answered, as the last word of a run.
    ///
    /// # Errors
    /// Names a key that could not be read before `end`, nor within [`KEY_RECOVERY`]. Where keys are many and frames are
    /// lost, reading all of them takes longer than a cluster needs to run.
    pub async fn read_all(mut self, end: Moment) -> Result<(), String> {
        let client = self.connect().await;
        for &store in self.world.clone().stores() {
            let handle = client.store(store).expect("the cluster has the store");
            for number in 0..self.world.setup.keys {
                let end = end.max(self.ports.clock.now().after(KEY_RECOVERY));
                let key = self.world.setup.key(number);
                while !self.get(&handle, store, key.clone()).await {
                    if self.ports.clock.now() > end {
                        return Err(format!("{store}/{} cannot be read after healing", key.escape_ascii()));
                    }
                    if self.world.only_damaged(store, &key) {
                        self.put_anew(&handle, store, key.clone()).await;
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
        let long = self.extras.chance(self.world.setup.long_values);
        let bytes = if long { *self.extras.pick(&[70_000, 300_000, 1_200_000]) } else { bytes };
        if self.world.setup.empty == Some((self.number, self.written)) {
            return Bytes::new();
        }
        let too_long = self.lengths.chance(self.world.setup.too_long);
        let bytes = if too_long { VALUE_BYTES_MAX } else { bytes };
        value.resize(value.len() + bytes, b'.');
        value.into()
    }

    /// Keys of a request of many: all of them, or some where there are very many.
    fn some_keys(&mut self) -> Vec<Bytes> {
        let (setup, extras) = (&self.world.setup, &mut self.extras);
        match u64::from(setup.keys) {
            0..=MANY_MAX => (0..setup.keys).map(|number| setup.key(number)).collect(),
            keys => (0..MANY_MAX).map(|_| setup.key(extras.below(keys) as u32)).collect(),
        }
    }

    /// Reads a whole partition from R replicas, page by page: a get of each key that may lie there.
    async fn walk(&mut self, cluster: &Cluster, handle: &StoreHandle, store: &'static str, near: &Bytes) {
        let definition = cluster.store(store).expect("it is one of the cluster's");
        let partition = cluster.ring.partition(definition.token(near));
        let lies_there = |key: &Bytes| cluster.ring.partition(definition.token(key)).id == partition.id;
        let keys: Vec<Bytes> = (0..self.world.setup.keys)
            .map(|number| self.world.setup.key(number))
            .filter(lies_there)
            .collect();
        let begin = |key: &Bytes| self.begin(store, key, Action::Get, Basis::Overwrite, None);
        let ids: Vec<OperationId> = keys.iter().map(begin).collect();
        ids.iter().for_each(|&id| self.recorder.walks(id));
        let mut nodes = partition.nodes[..usize::from(self.world.setup.replicas)].to_vec();
        let first = self.extras.below(nodes.len() as u64) as usize;
        nodes.rotate_left(first);
        let slice = (partition.id, cluster.ring.bounds(partition.id));
        let walked = pages(handle, slice, &nodes[..usize::from(self.world.setup.reads)]).await;
        let now = self.ports.clock.now();
        for (id, key) in ids.into_iter().zip(keys) {
            let outcome = match &walked {
                Ok(sets) => {
                    let mut set = sets.get(&key).cloned().unwrap_or_default();
                    if store != siblings::STORE {
                        set.resolve(Resolver::LastWriteWins);
                    }
                    Outcome::Got(set)
                }
                Err(reason) => Outcome::Failed(reason.clone()),
            };
            self.recorder.end(id, now, outcome);
        }
    }

    async fn get(&mut self, handle: &StoreHandle, store: &'static str, key: Bytes) -> bool {
        let request = self.request();
        let id = self.begin(store, &key, Action::Get, Basis::Overwrite, None);
        self.require(id, &request);
        let request = match self.world.setup.plant {
            Some(Plant::AbsentByOne) => RequestOptions { required: Some(1), ..request },
            _ => self.sent(request),
        };
        let (outcome, context) = match handle.get_with(key.clone(), &request).await {
            Ok(found) => self.got(id, &found),
            Err(_) if self.world.setup.plant == Some(Plant::UnavailableIsAbsent) => {
                (Outcome::Got(VersionSet::default()), None)
            }
            Err(error) => (refused(&error), None),
        };
        let answered = context.is_some();
        self.end(id, store, key, outcome, context);
        answered
    }

    /// Writes a key of which only damaged copies are left, as an operator does: no node can tell what they held.
    async fn put_anew(&mut self, handle: &StoreHandle, store: &'static str, key: Bytes) {
        let (value, request) = (self.value(), self.request());
        let id = self.begin(store, &key, Action::Put(value.clone()), Basis::Overwrite, None);
        self.require(id, &request);
        let (outcome, context) =
            written(handle.put(key.clone(), value, PutOptions { request, ..PutOptions::default() }).await);
        self.end(id, store, key, outcome, context);
    }

    /// Reads all keys in one request.
    async fn multi_get(&mut self, handle: &StoreHandle, store: &'static str) {
        let (keys, request) = (self.some_keys(), self.request());
        let begin = |key: &Bytes| self.begin(store, key, Action::Get, Basis::Overwrite, None);
        let ids: Vec<OperationId> = keys.iter().map(begin).collect();
        ids.iter().for_each(|&id| self.require(id, &request));
        let answers = handle.multi_get(keys.clone(), &self.sent(request)).await;
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
        let mut keys = self.some_keys();
        // Some name a key twice: two writes of it, each with its own outcome.
        if self.extras.chance(200) {
            keys.push(keys[0].clone());
        }
        let entries: Vec<(Bytes, Bytes)> = keys.into_iter().map(|key| (key, self.value())).collect();
        let begin = |(key, value): &(Bytes, Bytes)| {
            self.begin(store, key, Action::Put(value.clone()), Basis::Overwrite, None)
        };
        let ids: Vec<OperationId> = entries.iter().map(begin).collect();
        let request = self.request();
        ids.iter().for_each(|&id| self.require(id, &request));
        let answers = handle.multi_put(entries.clone(), &self.sent(request)).await;
        let answers = each(answers, entries.len());
        for ((id, (key, _)), answer) in ids.into_iter().zip(entries).zip(answers) {
            let (outcome, context) = written(answer);
            self.end(id, store, key, outcome, context);
        }
    }

    async fn write(&mut self, handle: &StoreHandle, store: &'static str, key: Bytes, action: Action) {
        let (basis, context) = self.basis(store, &key);
        let ttl = if action == Action::Delete { None } else { self.ttl() };
        let condition = self.condition(basis);
        let ignored = self.world.setup.plant == Some(Plant::ConditionsIgnored);
        let id = self.begin(store, &key, action.clone(), basis, ttl);
        self.recorder.condition(id, condition);
        let request = self.request();
        self.require(id, &request);
        let condition = if ignored { Condition::None } else { condition };
        let request = self.sent(request);
        let answer = match action {
            Action::Put(value) => {
                handle.put(key.clone(), value, PutOptions { context, ttl, condition, request }).await
            }
            _ => handle.delete(key.clone(), DeleteOptions { context, condition, request }).await,
        };
        let (outcome, context) = written(answer);
        self.end(id, store, key, outcome, context);
    }

    /// What must hold for the next write: none needs a context but the last.
    fn condition(&mut self, basis: Basis) -> Condition {
        if !self.extras.chance(self.world.setup.conditional) {
            return Condition::None;
        }
        let conditions = [Condition::IfAbsent, Condition::IfPresent, Condition::IfCurrent];
        let known = matches!(basis, Basis::After(_));
        *self.extras.pick(if known { &conditions } else { &conditions[..2] })
    }

    /// What a get's answer says, and the context for the next write.
    fn got(&self, id: OperationId, found: &Found) -> (Outcome, Option<Context>) {
        self.recorder.show(id, found.values().cloned().collect(), self.is_called_sloppy(found.is_sloppy()));
        (Outcome::Got(found.set().clone()), Some(found.context()))
    }

    /// What the history says that an answer says of fallbacks; a planted bug says it of all.
    fn is_called_sloppy(&self, sloppy: bool) -> bool {
        sloppy || self.world.setup.plant == Some(Plant::AllCalledSloppy)
    }

    /// What the next request asks for, in place of what its store says.
    fn request(&mut self) -> RequestOptions {
        let mut request = RequestOptions::default();
        if self.quorums.chance(self.world.setup.own_quorums) {
            request.required = Some(self.quorums.between(1, u64::from(self.world.setup.replicas)) as u8);
            request.sloppy = self.quorums.chance(300).then(|| self.quorums.chance(500));
        }
        request
    }

    /// What is really sent of it.
    fn sent(&self, request: RequestOptions) -> RequestOptions {
        match self.world.setup.plant {
            Some(Plant::OwnQuorumIgnored) => RequestOptions::default(),
            _ => request,
        }
    }

    fn require(&self, id: OperationId, request: &RequestOptions) {
        self.recorder.require(id, request.required, request.sloppy);
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
        let (now, setup) = (self.ports.clock.now(), &self.world.setup);
        self.recorder.begin(Operation {
            client: self.number,
            store,
            key: key.clone(),
            required: if action == Action::Get { setup.reads } else { setup.writes },
            // Its node drives a write.
            driver: (action == Action::Get).then_some(Host(100 + self.number)),
            action,
            basis,
            condition: Condition::None,
            strict: !setup.sloppy,
            sloppy: None,
            walked: false,
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

/// What these nodes hold of a partition, merged.
async fn pages(
    handle: &StoreHandle,
    (partition, bounds): (PartitionId, Option<(Token, Token)>),
    nodes: &[NodeId],
) -> Result<BTreeMap<Bytes, VersionSet>, String> {
    let mut sets: BTreeMap<Bytes, VersionSet> = BTreeMap::new();
    for &node in nodes {
        let mut after = None;
        loop {
            let page = handle.scan(node, partition, after, MANY_MAX as u32).await;
            let page = page.map_err(|error| error.to_string())?;
            if handle.cluster().ring.bounds(partition) != bounds {
                return Err(format!("partition {partition} was split or merged while it was walked"));
            }
            if page.damaged > 0 {
                return Err(format!("{node} leaves {} damaged records out", page.damaged));
            }
            for (key, set) in &page.records {
                sets.entry(key.clone()).or_default().merge(set);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(sets)
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

fn refused(error: &ClientError) -> Outcome {
    match error.is_indeterminate() {
        true => Outcome::Indeterminate(error.to_string()),
        false => Outcome::Failed(error.to_string()),
    }
}
