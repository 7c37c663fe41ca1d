//! What a frame costs: links that send requests of a given depth to echoing workers over loopback.
//!
//! `cargo run --release -p runtime --example ping_pong -- [links] [depth] [bytes] [seconds] [workers]`
//!
//! Prints exchanges per second and the processor time of the whole process (both ends) for each.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BufMut;
use runtime::network::tcp::TcpNetwork;
use runtime::{Link, Listener, Network, NetworkError, Ports, Workers};

/// What to run.
#[derive(Clone, Copy)]
struct Shape {
    links: u64,
    depth: u64,
    frame_bytes: u64,
    seconds: u64,
    workers: u64,
}

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|argument| argument.parse().ok()).collect();
    let Some(numbers) = numbers else {
        eprintln!("usage: ping_pong [links] [depth] [bytes] [seconds] [workers]");
        return ExitCode::FAILURE;
    };
    let number = |position: usize, default| numbers.get(position).copied().unwrap_or(default).max(1);
    let shape = Shape {
        links: number(0, 50),
        depth: number(1, 1),
        frame_bytes: number(2, 64),
        seconds: number(3, 3),
        workers: number(4, 1),
    };
    match run(shape) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(shape: Shape) -> Result<(), Box<dyn std::error::Error>> {
    let network = TcpNetwork::new();
    let workers = usize::try_from(shape.workers)?;
    let listeners = network.listen_shared("127.0.0.1:0", workers)?;
    let address = listeners[0].address();
    let ports = Ports::os()?;
    let servers = Workers::start_each(listeners, &ports, |mut worker, mut listener| async move {
        tokio::select! {
            biased;
            () = worker.stop.asked() => {}
            () = serve(listener.as_mut()) => {}
        }
    })?;
    let exchanges = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&exchanges);
    let clients = Workers::start(1, &ports, move |mut worker| {
        let (network, address, exchanges) = (network.clone(), address.clone(), Arc::clone(&counted));
        async move {
            for _ in 0..shape.links {
                let link = network.connect(&address).await.expect("the workers listen");
                tokio::spawn(request(link, shape, Arc::clone(&exchanges)));
            }
            worker.stop.asked().await;
        }
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let (start, used, before) = (Instant::now(), processor_time(), exchanges.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs(shape.seconds));
    let count = exchanges.load(Ordering::Relaxed) - before;
    let (elapsed, used) = (start.elapsed(), processor_time() - used);
    println!(
        "{} links, depth {}, {} bytes, {} workers: {:.0} exchanges/s, {:.2} us of processor time each (both ends)",
        shape.links,
        shape.depth,
        shape.frame_bytes,
        shape.workers,
        count as f64 / elapsed.as_secs_f64(),
        used.as_secs_f64() * 1e6 / count as f64,
    );
    drop((clients, servers));
    Ok(())
}

async fn serve(listener: &mut dyn Listener) {
    while let Ok(link) = listener.accept().await {
        tokio::spawn(echo(link));
    }
}

async fn echo(mut link: Link) {
    while let Ok(Some(frame)) = link.receiver.receive().await {
        if link.sender.send(&mut |body| body.put_slice(&frame)).is_err() {
            return;
        }
    }
}

/// Keeps `depth` requests under way, sending anew when all answers have come, as a pipelining client does.
async fn request(mut link: Link, shape: Shape, exchanges: Arc<AtomicU64>) -> Result<(), NetworkError> {
    let frame = vec![7; usize::try_from(shape.frame_bytes).expect("frames fit into memory")];
    loop {
        for _ in 0..shape.depth {
            link.sender.send(&mut |body| body.put_slice(&frame))?;
        }
        for _ in 0..shape.depth {
            if link.receiver.receive().await?.is_none() {
                return Ok(());
            }
        }
        exchanges.fetch_add(shape.depth, Ordering::Relaxed);
    }
}

/// User and system time of this process so far.
fn processor_time() -> Duration {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(clock.tv_sec), u32::try_from(clock.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}
