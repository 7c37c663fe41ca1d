//! The ports of the simulated world.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model::Moment;
use runtime::{BoxFuture, Network};
use sim::dice::Dice;
use sim::executor::{Executor, Halt};
use sim::host::Host;
use sim::network::{Conditions, LINK_BYTES_MAX, Wires};

/// Plays `body` as the only process.
fn play(body: impl FnOnce(Arc<Executor>, Arc<dyn Network>) -> BoxFuture<'static, ()>) {
    let executor = Executor::new(None);
    let process = executor.process();
    let wires = Wires::new(executor.clone(), Dice::new(1), Conditions::calm());
    let done = Arc::new(AtomicBool::new(false));
    let (future, ended) = (body(executor.clone(), wires.at(Host(1), process)), done.clone());
    executor.spawn(
        process,
        Box::pin(async move {
            future.await;
            ended.store(true, Ordering::Relaxed);
        }),
    );
    executor.run(&done, Moment::default().after(Duration::from_secs(3600))).expect("the run ends");
    executor.end();
}

#[test]
fn the_simulated_network_passes_the_suite_of_all_networks() {
    play(|_, network| {
        Box::pin(async move { runtime::network::conformance::run(&*network, "h1:0", "h1:9").await })
    });
}

#[test]
fn a_queue_that_is_never_emptied_is_bounded() {
    play(|_, network| {
        Box::pin(async move {
            runtime::network::conformance::overload(&*network, "h1:0", LINK_BYTES_MAX).await;
        })
    });
}

#[test]
fn a_blocked_direction_holds_frames_back_until_it_is_open_again() {
    let executor = Executor::new(None);
    let (near, far) = (executor.process(), executor.process());
    let wires = Wires::new(executor.clone(), Dice::new(1), Conditions::calm());
    let done = Arc::new(AtomicBool::new(false));
    let (client, server) = (wires.at(Host(1), near), wires.at(Host(2), far));
    let (world, ended, clock) = (wires.clone(), done.clone(), executor.clone());
    let body = async move {
        let mut listener = server.listen("h2:7").await.expect("free");
        let (link, accepted) = futures_util::future::join(client.connect("h2:7"), listener.accept()).await;
        let (link, mut accepted) = (link.expect("connected"), accepted.expect("accepted"));
        world.block(Host(1), Host(2));
        link.sender.send(&mut |frame| frame.extend_from_slice(b"late")).expect("open");
        let waited = Duration::from_secs(3);
        let timer = clock.sleep(waited);
        let (world, opener) = (world.clone(), clock.clone());
        let open = async move {
            timer.await;
            world.unblock(Host(1), Host(2));
            opener.now()
        };
        let (opened, frame) = futures_util::future::join(open, accepted.receiver.receive()).await;
        assert_eq!(frame.expect("open").expect("a frame"), "late");
        assert!(clock.now() > opened, "not before the direction was open");
        ended.store(true, Ordering::Relaxed);
    };
    executor.spawn(near, Box::pin(body));
    executor.run(&done, Moment::default().after(Duration::from_secs(60))).expect("the run ends");
    executor.end();
}

#[test]
fn a_link_that_breaks_instead_of_answering_has_carried_the_request() {
    let executor = Executor::new(None);
    let (near, far) = (executor.process(), executor.process());
    let wires = Wires::new(executor.clone(), Dice::new(1), Conditions::calm());
    let done = Arc::new(AtomicBool::new(false));
    let (client, server) = (wires.at(Host(1), near), wires.at(Host(2), far));
    let (world, ended) = (wires.clone(), done.clone());
    let body = async move {
        let mut listener = server.listen("h2:7").await.expect("free");
        for per_mille in [1000, 0] {
            world.cut_answers(Host(2), per_mille);
            let (link, accepted) =
                futures_util::future::join(client.connect("h2:7"), listener.accept()).await;
            let (mut link, mut accepted) = (link.expect("connected"), accepted.expect("accepted"));
            link.sender.send(&mut |frame| frame.extend_from_slice(b"request")).expect("open");
            assert_eq!(accepted.receiver.receive().await.expect("open").expect("a frame"), "request");
            accepted.sender.send(&mut |frame| frame.extend_from_slice(b"answer")).expect("open");
            let answer = link.receiver.receive().await;
            assert_eq!(answer.is_err(), per_mille > 0, "{answer:?}");
        }
        ended.store(true, Ordering::Relaxed);
    };
    executor.spawn(near, Box::pin(body));
    executor.run(&done, Moment::default().after(Duration::from_secs(60))).expect("the run ends");
    executor.end();
}

#[test]
fn a_killed_process_stops_and_its_peers_learn_of_it() {
    let executor = Executor::new(None);
    let (near, far) = (executor.process(), executor.process());
    let wires = Wires::new(executor.clone(), Dice::new(1), Conditions::calm());
    let done = Arc::new(AtomicBool::new(false));
    let beats = Arc::new(AtomicU64::new(0));
    let (server, counted, clock) = (wires.at(Host(2), far), beats.clone(), executor.clone());
    executor.spawn(
        far,
        Box::pin(async move {
            let mut listener = server.listen("h2:7").await.expect("free");
            let _link = listener.accept().await.expect("accepted");
            loop {
                clock.sleep(Duration::from_millis(1)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }),
    );
    let (client, world, ended, clock) = (wires.at(Host(1), near), wires, done.clone(), executor.clone());
    let killer = executor.clone();
    let body = async move {
        let mut link = client.connect("h2:7").await.expect("connected");
        clock.sleep(Duration::from_millis(100)).await;
        world.end_process(far, Duration::ZERO);
        killer.kill(far);
        let before = beats.load(Ordering::Relaxed);
        assert!(before > 0, "it ran before");
        assert!(link.receiver.receive().await.is_err(), "the peer learns it");
        clock.sleep(Duration::from_millis(100)).await;
        assert_eq!(beats.load(Ordering::Relaxed), before, "nothing of it runs any more");
        assert!(client.connect("h2:7").await.is_err(), "nobody listens any more");
        ended.store(true, Ordering::Relaxed);
    };
    executor.spawn(near, Box::pin(body));
    executor.run(&done, Moment::default().after(Duration::from_secs(60))).expect("the run ends");
    executor.end();
}

#[test]
fn time_jumps_to_the_next_timer_and_a_world_without_any_is_stuck() {
    let executor = Executor::new(None);
    let process = executor.process();
    let sleep = executor.sleep(Duration::from_secs(1000));
    let clock = executor.clone();
    executor.spawn(
        process,
        Box::pin(async move {
            sleep.await;
            assert_eq!(clock.now().since(Moment::default()), Duration::from_secs(1000));
        }),
    );
    let never = AtomicBool::new(false);
    let ended = executor.run(&never, Moment::default().after(Duration::from_secs(3600)));
    assert_eq!(ended, Err(Halt::Stuck));
}

#[test]
fn a_panic_of_a_task_ends_the_run_with_its_message_and_its_place() {
    let executor = Executor::new(None);
    let process = executor.process();
    let line = line!() + 1;
    executor.spawn(process, Box::pin(async { panic!("as planned") }));
    let never = AtomicBool::new(false);
    let ended = executor.run(&never, Moment::default().after(Duration::from_secs(1)));
    let Err(Halt::Panicked { message }) = ended else { panic!("{ended:?}") };
    let place = format!("world.rs:{line}:");
    assert!(message.starts_with("as planned (") && message.contains(&place), "{message}");
}
