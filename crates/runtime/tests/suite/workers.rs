//! Worker threads: each its own executor, stopped and joined cleanly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::bytes::BufMut;
use runtime::network::tcp::TcpNetwork;
use runtime::workers::WorkerPanicked;
use runtime::{Link, Network, Ports, Worker, Workers};

#[tokio::test]
async fn workers_run_until_they_are_stopped_and_return_what_they_found() {
    let (begun, mut all_begun) = tokio::sync::mpsc::channel(3);
    let workers = Workers::start(3, &Ports::os().unwrap(), move |mut worker: Worker| {
        let begun = begun.clone();
        async move {
            begun.send(worker.stop.is_asked()).await.unwrap();
            worker.stop.asked().await;
            assert!(worker.stop.is_asked());
            (worker.index, std::thread::current().name().map(str::to_owned))
        }
    })
    .unwrap();
    for _ in 0..3 {
        assert_eq!(all_begun.recv().await, Some(false), "nobody asked to stop yet");
    }
    workers.stop();
    let found = workers.join().await.unwrap();
    let expected: Vec<_> = (0..3).map(|index| (index, Some(format!("worker-{index}")))).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn dropping_the_workers_asks_them_to_stop() {
    let (ended, mut all_ended) = tokio::sync::mpsc::channel::<()>(1);
    let workers = Workers::start(2, &Ports::os().unwrap(), move |mut worker: Worker| {
        let ended = ended.clone();
        async move {
            worker.stop.asked().await;
            drop(ended);
        }
    });
    drop(workers.unwrap());
    assert_eq!(all_ended.recv().await, None, "every worker ended");
}

#[tokio::test]
async fn a_panicking_worker_is_named_after_the_others_ended() {
    let others = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&others);
    let workers = Workers::start(3, &Ports::os().unwrap(), move |worker: Worker| {
        let others = Arc::clone(&counted);
        async move {
            assert_ne!(worker.index, 1, "this panic is the test's own");
            others.fetch_add(1, Ordering::SeqCst);
        }
    });
    assert_eq!(workers.unwrap().join().await, Err(WorkerPanicked { index: 1 }));
    assert_eq!(others.load(Ordering::SeqCst), 2);
}

/// Answers every frame with itself.
async fn echo(mut link: Link) {
    while let Ok(Some(frame)) = link.receiver.receive().await {
        if link.sender.send(&mut |body| body.put_slice(&frame)).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn every_worker_serves_its_share_of_the_links() {
    let network = TcpNetwork::new();
    let listeners = network.listen_shared("127.0.0.1:0", 2).unwrap();
    let address = listeners[0].address();
    let workers =
        Workers::start_each(listeners, &Ports::os().unwrap(), |mut worker, mut listener| async move {
            let mut accepted = 0;
            loop {
                tokio::select! {
                    biased;
                    () = worker.stop.asked() => return accepted,
                    link = listener.accept() => {
                        accepted += 1;
                        worker.ports.tasks.spawn(Box::pin(echo(link.unwrap())));
                    }
                }
            }
        })
        .unwrap();
    let mut links = Vec::new();
    for number in 0..4_u64 {
        let mut link = network.connect(&address).await.unwrap();
        link.sender.send(&mut |body| body.put_u64_le(number)).unwrap();
        assert_eq!(link.receiver.receive().await.unwrap().unwrap()[..], number.to_le_bytes());
        links.push(link);
    }
    workers.stop();
    assert_eq!(workers.join().await.unwrap(), [2, 2]);
    for mut link in links {
        // The workers' executors are gone, and with them their links.
        assert!(matches!(link.receiver.receive().await, Ok(None) | Err(_)));
    }
}
