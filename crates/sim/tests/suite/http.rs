//! Keys by HTTP, over a simulated network: what production runs, with nodes that die and stand still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use model::NodeId;
use parking_lot::Mutex;
use runtime::Ports;
use sim::cluster::{LAST_WRITE, World, http_address};
use sim::dice::Dice;
use sim::executor::WallClock;
use sim::host::Host;
use sim::network::{Conditions, LinkStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{play, setup, until};

/// Clients, each with its own key.
const CLIENTS: u32 = 3;
/// Requests of each.
const REQUESTS: u32 = 60;

/// What was asked and answered, by whom and when.
#[derive(Default)]
struct Told {
    lines: Mutex<Vec<String>>,
    done: AtomicU32,
    lost: AtomicU32,
}

/// An answer: its status, its ETag and its body.
type Web = (u16, Option<String>, String);

/// One request on its own connection, with these further lines; `None` when it was not answered whole.
async fn ask(ports: &Ports, node: NodeId, (request, lines): (&str, &str), body: &str) -> Option<Web> {
    let link = ports.network.connect(&http_address(node)).await.ok()?;
    let mut stream = LinkStream::new(link, ports.entropy.clone());
    let text = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).map(str::to_owned);
    Some((head.split(' ').nth(1)?.parse().ok()?, etag, body.to_owned()))
}

/// Writes and reads its key at nodes that it draws, and hands back the context of what it wrote. What it reads is what was
/// acknowledged last, or something in doubt: never an older value, and never nothing.
async fn work(world: Arc<World>, told: Arc<Told>, (by, ports): (u32, Ports), mut dice: Dice) {
    let path = format!("/v1/stores/{LAST_WRITE}/keys/key%20{by}");
    let (mut sure, mut seen, mut doubtful) = (None, String::new(), Vec::new());
    for number in 0..REQUESTS {
        let node = NodeId(1 + dice.below(3) as u32);
        let writes = dice.chance(500);
        let value = format!("value {by} {number}");
        let answer = match writes {
            true => ask(&ports, node, (&format!("PUT {path}"), &seen), &value).await,
            false => ask(&ports, node, (&format!("GET {path}"), ""), "").await,
        };
        let said =
            answer.as_ref().map_or("nothing".to_owned(), |(status, _, body)| format!("{status} {body}"));
        told.lines.lock().push(format!("{:?} c{by} {node} {writes} {number}: {said}", world.executor.now()));
        match (writes, answer) {
            (true, Some((204, etag, _))) => {
                (sure, seen) =
                    (Some(value), format!("if-match: {}\r\n", etag.expect("what was written has a context")));
                told.done.fetch_add(1, Ordering::Relaxed);
            }
            // It certainly was not done.
            (true, Some((503 | 400..=499, ..))) => {}
            (true, None | Some(_)) => {
                doubtful.push(value);
                told.lost.fetch_add(1, Ordering::Relaxed);
            }
            (false, Some((200, _, body))) => {
                assert!(
                    sure.as_ref() == Some(&body) || doubtful.contains(&body),
                    "c{by} read {body}, not {sure:?}"
                );
                told.done.fetch_add(1, Ordering::Relaxed);
            }
            (false, Some((404, ..))) => assert_eq!(sure, None, "c{by} was told that its key is not there"),
            (false, None | Some((503, ..))) => {}
            (false, Some(other)) => panic!("c{by}: {other:?}"),
        }
        world.executor.sleep(dice.millis(1, 60)).await;
    }
}

fn played(seed: u64) -> Arc<Told> {
    let told = Arc::new(Told::default());
    let kept = told.clone();
    let mut setup = setup(seed);
    setup.http = true;
    setup.conditions = Conditions { delay_us_spread: 3_000, slow_per_mille: 20, ..Conditions::calm() };
    play(setup, move |world, first| async move {
        let (process, mut dice) = (world.executor.process(), Dice::apart(seed, 78));
        let done = Arc::new(tokio::sync::Semaphore::new(0));
        for by in 1..=CLIENTS {
            let ports = world.ports(Host(110 + by), process, Arc::new(WallClock::default()));
            let works = work(world.clone(), kept.clone(), (by, ports), Dice::new(dice.roll()));
            let done = done.clone();
            world.executor.spawn(
                process,
                Box::pin(async move {
                    works.await;
                    done.add_permits(1);
                }),
            );
        }
        for _ in 0..3 {
            let position = dice.below(3) as usize;
            world.executor.sleep(dice.millis(100, 500)).await;
            world.kill(position, Duration::ZERO, Duration::ZERO);
            world.executor.sleep(dice.millis(50, 400)).await;
            world.start(position);
            until(&world, "all nodes stand", || world.all_up()).await;
        }
        drop(done.acquire_many(CLIENTS).await);
        first.close();
    });
    told
}

#[test]
fn writes_acknowledged_over_http_are_read_back_while_nodes_die() {
    let (mut done, mut lost) = (0, 0);
    for seed in 1..=8 {
        let told = played(seed);
        done += told.done.load(Ordering::Relaxed);
        lost += told.lost.load(Ordering::Relaxed);
    }
    // Otherwise hardly anything was done, or nothing went wrong.
    assert!(done >= 800 && lost > 0, "{done} done, {lost} in doubt");
}

#[test]
fn a_run_with_http_is_the_same_when_it_is_repeated() {
    let (first, second) = (played(5), played(5));
    assert_eq!(*first.lines.lock(), *second.lines.lock());
    assert_ne!(*first.lines.lock(), *played(6).lines.lock());
}
