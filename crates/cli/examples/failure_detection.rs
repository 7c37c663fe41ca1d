//! How soon every survivor knows that a node was killed: real processes, SIGKILL, and the nodes' own word for it.
//!
//! ```text
//! cargo build --profile proof -p cli && cargo run --profile proof -p cli --example failure_detection -- [NODES] [RUNS]
//! ```
//!
//! Starts `tontine dev --separate-processes`, and for each run: waits until all views say that all are alive, kills a
//! node in turn, asks every survivor over and over (`nodes-get`) until it no longer says *alive*, and starts the node
//! again. Survivors are asked one after the other, so what is printed includes the time to ask.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::{Client, ClientOptions};
use model::NodeId;
use runtime::Ports;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long all are alive before one is killed.
const SETTLED: Duration = Duration::from_secs(3);
/// Port base of the measured cluster.
const PORT_BASE: u16 = 18_400;

type Failure = Box<dyn std::error::Error>;

/// A process that ends with this one.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
            && matches!(self.0.try_wait(), Ok(None))
        {
            // It may end by itself meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn start_dev(tontine: &Path, folder: &Path, nodes: usize) -> Result<(Ended, Vec<u32>), Failure> {
    let mut child = Command::new(tontine)
        .args(["dev", "--separate-processes", "--engine=memory", "--workers=1"])
        .args([format!("--nodes={nodes}"), format!("--port-base={PORT_BASE}")])
        .arg(format!("--data-dir={}", folder.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("no stdout")?;
    let dev = Ended(child);
    let mut pids = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        pids.extend(line.split(" is process ").nth(1).and_then(|pid| pid.parse::<u32>().ok()));
        if pids.len() == nodes {
            return Ok((dev, pids));
        }
    }
    Err("the cluster did not start".into())
}

fn start_node(tontine: &Path, folder: &Path, node: usize) -> Result<Ended, Failure> {
    let mut child = Command::new(tontine)
        .args(["node", "--engine=memory", "--workers=1", &format!("--id={node}")])
        .arg(format!("--data-dir={}", folder.join(format!("node-{node}")).display()))
        .arg(format!("--coordination={}", folder.join("coordination").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("no stdout")?;
    let started = Ended(child);
    match BufReader::new(stdout).lines().next() {
        Some(Ok(_)) => Ok(started),
        _ => Err("the node did not start again".into()),
    }
}

/// What `viewer` says about `of`: a field of its row.
async fn said(client: &Client, viewer: usize, of: usize, field: &str) -> Option<String> {
    let answer = client.nodes_seen_by(NodeId(viewer as u32)).await.ok()?;
    let view: Json = serde_json::from_slice(&answer).ok()?;
    let seen = view["nodes"].as_array()?.iter().find(|node| node["node"] == of as u64)?;
    seen[field].as_str().map(str::to_owned)
}

async fn all_alive(client: &Client, nodes: usize) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    'again: while Instant::now() < end {
        for viewer in 1..=nodes {
            for of in (1..=nodes).filter(|&of| of != viewer) {
                let why = said(client, viewer, of, "why").await;
                if why.as_deref() != Some("its heartbeats arrive") {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue 'again;
                }
            }
        }
        // Time to meet everybody: a cluster of eight does so in eight rounds of 0.2 s.
        tokio::time::sleep(SETTLED).await;
        return Ok(());
    }
    Err("not all nodes became alive".into())
}

/// Until each survivor stops saying that the killed node is alive.
async fn survivors_know(client: &Client, nodes: usize, killed: usize) -> Result<Vec<Duration>, Failure> {
    let began = Instant::now();
    let mut waiting: Vec<usize> = (1..=nodes).filter(|&node| node != killed).collect();
    let mut known = Vec::new();
    while !waiting.is_empty() {
        let mut still = Vec::new();
        for viewer in waiting {
            match said(client, viewer, killed, "state").await.as_deref() {
                Some("alive") | None => still.push(viewer),
                Some(_) => known.push(began.elapsed()),
            }
        }
        waiting = still;
        if began.elapsed() > PATIENCE {
            return Err(format!("{waiting:?} never noticed").into());
        }
    }
    Ok(known)
}

fn median(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

async fn measure(nodes: usize, runs: usize) -> Result<(), Failure> {
    let here = std::env::current_exe()?;
    let tontine: PathBuf = here.ancestors().nth(2).ok_or("no target directory")?.join("tontine");
    let folder = tempfile::tempdir()?;
    let (_dev, mut pids) = start_dev(&tontine, folder.path(), nodes)?;
    let mut restarted: Vec<Option<Ended>> = (0..nodes).map(|_| None).collect();
    let addresses: Vec<String> =
        (1..=nodes).map(|node| format!("127.0.0.1:{}", usize::from(PORT_BASE) + node)).collect();
    let options = ClientOptions { deadline: Duration::from_secs(1), ..ClientOptions::default() };
    let client = Client::connect(&addresses, Ports::os()?, options).await?;
    let (mut all, mut lasts) = (Vec::new(), Vec::new());
    for run in 0..runs {
        all_alive(&client, nodes).await?;
        let killed = run % nodes + 1;
        let pid = Pid::from_raw(i32::try_from(pids[killed - 1])?).ok_or("no process")?;
        kill_process(pid, Signal::KILL)?;
        let mut known = survivors_know(&client, nodes, killed).await?;
        known.sort();
        let last = known.last().copied().unwrap_or_default();
        println!("run {:2}: n{killed} killed, every survivor knew after {last:.1?}", run + 1);
        lasts.push(last);
        all.extend(known);
        let again = start_node(&tontine, folder.path(), killed)?;
        pids[killed - 1] = again.0.id();
        restarted[killed - 1] = Some(again);
    }
    all.sort();
    lasts.sort();
    println!(
        "{nodes} nodes, {runs} runs: every survivor knew after {:.1?} (median run), {:.1?} (worst run); the median \
         survivor after {:.1?}",
        median(&lasts),
        lasts.last().copied().unwrap_or_default(),
        median(&all)
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let nodes = numbers.next().transpose()?.unwrap_or(8);
    let runs = numbers.next().transpose()?.unwrap_or(20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(nodes, runs))
}
