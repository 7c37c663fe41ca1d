//! Space and time of each compression, on records like those that people store.

use std::path::Path;

use model::Token;
use storage::readonly::{Artifact, Compression, Layout};

use super::{Dice, KEY_BYTES, built, key, processor_ns};

/// Records of each kind.
const RECORDS: u64 = 100_000;
/// Gets that are timed.
const GETS: u64 = 300_000;

/// Makes the value of a number.
type Make = fn(&mut Dice, u64) -> Vec<u8>;

/// A profile in JSON, as an application writes it.
fn profile(dice: &mut Dice, number: u64) -> Vec<u8> {
    const TOWNS: [&str; 8] = ["Lisboa", "Praha", "Kyoto", "Quito", "Oslo", "Nairobi", "Austin", "Perth"];
    const TOPICS: [&str; 8] =
        ["music", "chess", "sailing", "cooking", "painting", "history", "running", "gardens"];
    let mut text = format!(
        "{{\"id\":{number},\"name\":\"user {number}\",\"town\":\"{}\",\"since\":\"20{:02}-{:02}-{:02}\",\"visits\":{},\"topics\":[",
        TOWNS[dice.below(8) as usize],
        10 + dice.below(15),
        1 + dice.below(12),
        1 + dice.below(28),
        dice.below(100_000)
    );
    for topic in 0..2 + dice.below(4) {
        let comma = if topic == 0 { "" } else { "," };
        text += &format!(
            "{comma}{{\"topic\":\"{}\",\"weight\":0.{:04}}}",
            TOPICS[dice.below(8) as usize],
            dice.below(10_000)
        );
    }
    (text + "]}").into_bytes()
}

/// Ids in ascending order, as differences of seven bits a byte: what "people you may know" is made of.
fn ids(dice: &mut Dice, _: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..10 + dice.below(60) {
        let mut difference = 1 + dice.below(200_000);
        while difference >= 128 {
            bytes.push((difference & 127) as u8 | 128);
            difference >>= 7;
        }
        bytes.push(difference as u8);
    }
    bytes
}

pub(crate) fn table(directory: &Path) {
    println!(
        "| values | mean | compression | layout | on disk | build | get |\n|---|---|---|---|---|---|---|"
    );
    let kinds: [(&str, Make); 2] = [("profiles in JSON", profile), ("lists of ids", ids)];
    for (name, make) in kinds {
        let mut dice = Dice(5);
        let values: Vec<Vec<u8>> = (0..RECORDS).map(|number| make(&mut dice, number)).collect();
        let payload: usize = values.iter().map(|value| value.len() + KEY_BYTES).sum();
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            for layout in [Layout::Pages, Layout::Slots] {
                let mut records = values
                    .iter()
                    .enumerate()
                    .map(|(number, value)| (key(number as u64).to_vec(), value.clone()));
                let began = processor_ns();
                let (disk, manifest) = built(directory, Some(layout), compression, &mut records);
                let seconds = (processor_ns() - began) as f64 / 1e9;
                let artifact = Artifact::open(&*disk, "", &|_| true).unwrap();
                let mut out = Vec::new();
                let mut get = |dice: &mut Dice| {
                    let number = dice.below(RECORDS);
                    out.clear();
                    assert!(artifact.get_into(Token::of(&key(number)), &key(number), &mut out).unwrap());
                    assert_eq!(out, values[number as usize]);
                };
                (0..RECORDS).for_each(|_| get(&mut dice));
                let began = processor_ns();
                (0..GETS).for_each(|_| get(&mut dice));
                println!(
                    "| {name} | {} B | {} | {} | {:.2} | {:.0} MB/s | {:.0} ns |",
                    payload as u64 / RECORDS - KEY_BYTES as u64,
                    compression.name(),
                    layout.name(),
                    manifest.file_bytes() as f64 / payload as f64,
                    payload as f64 / seconds / 1e6,
                    (processor_ns() - began) as f64 / GETS as f64
                );
            }
        }
    }
}
