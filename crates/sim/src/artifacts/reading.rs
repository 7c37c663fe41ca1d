//! Readers of the read-only store: real clients that ask for one key or many, of what is served or of one artifact.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientOptions, StoreHandle};
use model::{ArtifactNumber, Moment};
use runtime::Ports;
use wire::messages::RequestOptions;

use super::{READER_FIRST, READERS};
use crate::book::{LIVELY, OWN, STILL, STORE, lively, own, still};
use crate::check::artifacts::ReadAsked;
use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::host::Host;
use crate::plant::Plant;

/// Pause before a reader that could not connect, or knows no store yet, tries again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a planted reader waits in the midst of a request.
const IN_THE_MIDST: Duration = Duration::from_millis(30);

/// One reader.
struct ArtifactReader {
    world: Arc<World>,
    number: u32,
    ports: Ports,
    dice: Dice,
}

/// Reads until `end`.
pub async fn read(world: Arc<World>, number: u32, process: ProcessId, end: Moment) {
    let ports = world.ports(Host(READERS + number), process, Arc::new(WallClock::default()));
    let dice = Dice::apart(world.setup.seed, 7000 + u64::from(number));
    let mut reader = ArtifactReader { world, number, ports, dice };
    let client = loop {
        if reader.ports.clock.now() >= end {
            return;
        }
        match reader.connect().await {
            Some(client) => break client,
            None => reader.ports.clock.sleep(AGAIN).await,
        }
    };
    while reader.ports.clock.now() < end {
        match client.store(STORE) {
            Ok(store) => reader.ask(&client, store).await,
            Err(_) => {
                // A client that asks for no store of read-only artifacts learns of none.
                let _ = client.refresh().await;
                reader.ports.clock.sleep(AGAIN).await;
            }
        }
        let think = reader.dice.below(reader.world.setup.think.as_micros() as u64 + 1);
        reader.ports.clock.sleep(Duration::from_micros(think)).await;
    }
    client.close();
}

/// Reads all keys of what is served, as the last word of a run; what was told, or why nothing was.
///
/// # Errors
/// When a key could not be read.
pub(super) async fn read_all(world: &Arc<World>, keys: Vec<Bytes>) -> Result<ReadAsked, String> {
    let number = world.setup.readers + 1;
    let process = world.executor.process();
    let ports = world.ports(Host(READERS + number), process, Arc::new(WallClock::default()));
    let dice = Dice::apart(world.setup.seed, 7000 + u64::from(number));
    let reader = ArtifactReader { world: world.clone(), number, ports, dice };
    let client = reader.connect().await.ok_or("no node can be reached")?;
    let store = client.store(STORE).map_err(|error| error.to_string())?;
    let answers = store.multi_get(keys.clone(), &RequestOptions::default()).await;
    let answers = answers.map_err(|error| error.to_string())?;
    let values: Result<Vec<_>, _> =
        answers.into_iter().map(|answer| answer.map(|found| found.value())).collect();
    let values = values.map_err(|error| error.to_string())?;
    let ended = world.executor.now();
    client.close();
    Ok(ReadAsked {
        client: READER_FIRST + number,
        ended,
        chosen: None,
        answers: keys.into_iter().zip(values).collect(),
    })
}

impl ArtifactReader {
    async fn connect(&self) -> Option<Client> {
        let options = ClientOptions {
            spread: Dice::apart(self.world.setup.seed, 7500 + u64::from(self.number)).chance(700),
            name: format!("c{}", READER_FIRST + self.number),
            deadline: self.world.setup.deadline,
            ..ClientOptions::default()
        };
        Client::connect(&self.world.addresses(), self.ports.clone(), options).await.ok()
    }

    async fn ask(&mut self, client: &Client, store: StoreHandle) {
        let listed: Vec<ArtifactNumber> = {
            let cluster = client.cluster();
            let listed = cluster.read_only(STORE).map(|store| &store.artifacts);
            listed.into_iter().flatten().map(|artifact| artifact.number).collect()
        };
        if self.dice.chance(50) {
            // The others learn of swaps from the answers that they get.
            let _ = client.refresh().await;
        }
        let chosen = (!listed.is_empty() && self.dice.chance(80)).then(|| *self.dice.pick(&listed));
        let store = match chosen {
            None => store,
            Some(number) => match store.of_artifact(number) {
                Ok(store) => store,
                Err(_) => return,
            },
        };
        let newest = listed.last().map_or(0, |number| number.0);
        let keys = self.keys(newest);
        let in_parts = self.world.setup.plant == Some(Plant::BegunInParts) && keys.len() > 1;
        let answers = match in_parts {
            false => self.get(&store, keys).await,
            true => {
                let mut first = keys;
                let rest = first.split_off(first.len() / 2);
                let mut answers = self.get(&store, first).await;
                self.ports.clock.sleep(IN_THE_MIDST).await;
                let _ = client.refresh().await;
                answers.extend(self.get(&store, rest).await);
                answers
            }
        };
        let ended = self.ports.clock.now();
        let client = READER_FIRST + self.number;
        let book = &self.world.artifacts;
        if answers.iter().any(|(_, answer)| answer.is_none()) {
            book.refused.fetch_add(1, Ordering::Relaxed);
        }
        let answers: Vec<_> = answers.into_iter().filter_map(|(key, answer)| Some((key, answer?))).collect();
        if !answers.is_empty() {
            book.told(ReadAsked { client, ended, chosen: chosen.map(|number| number.0), answers });
        }
    }

    /// One key, or many.
    fn keys(&mut self, newest: u64) -> Vec<Bytes> {
        let own_of = |dice: &mut Dice| {
            let number = newest.saturating_sub(dice.below(3)).max(1);
            own(number, dice.below(u64::from(OWN)) as u32)
        };
        if self.dice.chance(300) {
            return vec![match self.dice.below(5) {
                0 => still(self.dice.below(u64::from(STILL)) as u32),
                1 => own_of(&mut self.dice),
                _ => lively(self.dice.below(u64::from(LIVELY)) as u32),
            }];
        }
        let mut keys: Vec<Bytes> = (0..LIVELY).map(lively).collect();
        keys.extend((0..4).map(|_| still(self.dice.below(u64::from(STILL)) as u32)));
        keys.extend((0..2).map(|_| own_of(&mut self.dice)));
        keys
    }

    /// What is answered of each key; nothing where it was refused.
    async fn get(&self, store: &StoreHandle, keys: Vec<Bytes>) -> Vec<(Bytes, Option<Option<Bytes>>)> {
        if let [key] = &keys[..] {
            let answer = store.get(key.clone()).await.ok().map(|found| found.value());
            return vec![(key.clone(), answer)];
        }
        match store.multi_get(keys.clone(), &RequestOptions::default()).await {
            Ok(answers) => {
                let values = answers.into_iter().map(|answer| answer.ok().map(|found| found.value()));
                keys.into_iter().zip(values).collect()
            }
            Err(_) => keys.into_iter().map(|key| (key, None)).collect(),
        }
    }
}
