//! The simulated network: links with delay, loss, duplication, reordering, one-way partitions, clogging and breaks.
//!
//! A link behaves as TCP does unless the seed says *lossy*: frames arrive whole, once and in order, a blocked
//! direction holds them back until it is open again, and the end of a process resets its links. A lossy network may
//! also lose, duplicate and reorder single frames, which no TCP does: the protocols above must bear it all the same.
//!
//! Addresses are `h<host>:<port>`; partitions are between hosts.
//!
//! Must never: look into a frame. (Only a planted bug does.)

mod link;
mod stream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use runtime::{BoxFuture, Link, Listener, Network, NetworkError};

use crate::circumstances::{Trouble, Troubles};
use crate::dice::Dice;
use crate::executor::{Executor, ProcessId};
use crate::host::Host;

pub use link::LINK_BYTES_MAX;
use link::Route;
pub use stream::LinkStream;

/// The port whose links carry streams of bytes ([`LinkStream`]): these arrive whole, once and in order also where the
/// network is lossy.
pub const STREAM_PORT: u16 = 6379;
/// The port of another such door.
pub const WEB_PORT: u16 = 80;

/// Attempts to reach a host behind a partition before connecting is given up.
const CONNECT_ATTEMPTS: u32 = 20;
/// Pause between them.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);

/// How the network behaves while no fault is injected.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Shortest way of a frame, in microseconds.
    pub delay_us_min: u64,
    /// Usual spread above it, in microseconds.
    pub delay_us_spread: u64,
    /// Frames in a thousand that take twenty times as long.
    pub slow_per_mille: u64,
    /// Frames in a thousand that are lost.
    pub loss_per_mille: u64,
    /// Frames in a thousand that arrive twice.
    pub duplicate_per_mille: u64,
    /// Whether frames of one link overtake each other.
    pub reorder: bool,
}

impl Conditions {
    /// No faults, and hardly a delay.
    pub fn calm() -> Conditions {
        Conditions {
            delay_us_min: 50,
            delay_us_spread: 200,
            slow_per_mille: 0,
            loss_per_mille: 0,
            duplicate_per_mille: 0,
            reorder: false,
        }
    }
}

/// Changes frames on their way: a planted bug.
pub type Tamper = Box<dyn FnMut(&mut Vec<u8>) + Send>;

/// The wires between all hosts. Clones are the same wires.
#[derive(Clone)]
pub struct Wires {
    executor: Arc<Executor>,
    state: Arc<Mutex<State>>,
    troubles: Troubles,
}

struct State {
    dice: Dice,
    conditions: Conditions,
    listeners: BTreeMap<String, Listening>,
    links: BTreeMap<u64, link::LinkState>,
    number_next: u64,
    port_next: u32,
    blocked: BTreeSet<(Host, Host)>,
    slow: BTreeMap<Host, Duration>,
    /// Frames in a thousand from these hosts in whose place the link breaks, and dice for it.
    cutting: BTreeMap<Host, u64>,
    cuts: Dice,
    tamper: Option<Tamper>,
    /// The same for what arrives.
    late: Option<Tamper>,
    /// Planted: who stands still is not connected to.
    refuses_stopped: bool,
    frames: u64,
}

struct Listening {
    number: u64,
    host: Host,
    process: ProcessId,
    arrived: VecDeque<Link>,
    waker: Option<Waker>,
}

impl Wires {
    /// Wires without any link.
    pub fn new(executor: Arc<Executor>, dice: Dice, conditions: Conditions) -> Wires {
        let state = State {
            cutting: BTreeMap::new(),
            cuts: Dice::apart(dice.clone().roll(), 1),
            dice,
            conditions,
            listeners: BTreeMap::new(),
            links: BTreeMap::new(),
            number_next: 1,
            port_next: 40_000,
            blocked: BTreeSet::new(),
            slow: BTreeMap::new(),
            tamper: None,
            late: None,
            refuses_stopped: false,
            frames: 0,
        };
        Wires { executor, state: Arc::new(Mutex::new(state)), troubles: Troubles::default() }
    }

    /// What went wrong on these wires so far, and with the hosts at their ends.
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// The network as one process of `host` uses it.
    pub fn at(&self, host: Host, process: ProcessId) -> Arc<dyn Network> {
        Arc::new(HostNetwork { wires: self.clone(), host, process })
    }

    /// Holds back everything that `from` sends to `to`, connections too.
    pub fn block(&self, from: Host, to: Host) {
        self.state.lock().blocked.insert((from, to));
        self.troubles.begin_between(Trouble::Blocked, (from, to), self.executor.now());
    }

    /// Lets it through again, what was held back first.
    pub fn unblock(&self, from: Host, to: Host) {
        self.state.lock().blocked.remove(&(from, to));
        self.troubles.end_between(Trouble::Blocked, (from, to), self.executor.now());
        self.release_held();
    }

    /// Ends all partitions and slowness, and from now on loses and duplicates nothing.
    pub fn heal(&self) {
        {
            let mut state = self.state.lock();
            state.blocked.clear();
            state.slow.clear();
            state.cutting.clear();
            state.conditions.loss_per_mille = 0;
            state.conditions.duplicate_per_mille = 0;
            state.conditions.reorder = false;
        }
        for kind in [Trouble::Blocked, Trouble::Slow, Trouble::Cutting] {
            self.troubles.end_all(kind, self.executor.now());
        }
        self.release_held();
    }

    /// Everything from and to `host` takes this much longer; zero ends it.
    pub fn slow(&self, host: Host, by: Duration) {
        self.state.lock().slow.insert(host, by);
        match by {
            Duration::ZERO => self.troubles.end(Trouble::Slow, host, self.executor.now()),
            _ => self.troubles.begin(Trouble::Slow, host, self.executor.now()),
        }
    }

    /// Breaks a link of `from` in place of this many in a thousand of the frames that it sends. What it has taken in is
    /// done, and its answer never comes. Zero ends it.
    pub fn cut_answers(&self, from: Host, per_mille: u64) {
        let mut state = self.state.lock();
        match per_mille {
            0 => {
                state.cutting.remove(&from);
                self.troubles.end(Trouble::Cutting, from, self.executor.now());
            }
            _ => {
                state.cutting.insert(from, per_mille);
                self.troubles.begin(Trouble::Cutting, from, self.executor.now());
            }
        }
    }

    /// Breaks every link between the two hosts.
    pub fn break_links(&self, a: Host, b: Host) {
        self.troubles.broken_link((a, b), self.executor.now());
        let between = |ends: [Host; 2]| ends == [a, b] || ends == [b, a];
        self.end_links(&|hosts, _| between(hosts).then_some([true, true]), Duration::ZERO);
    }

    /// The end of a process: nobody listens any more, and the other ends of its links learn it `silence` later.
    pub fn end_process(&self, process: ProcessId, silence: Duration) {
        let dropped: Vec<Listening> = {
            let mut state = self.state.lock();
            let gone: Vec<String> = state
                .listeners
                .iter()
                .filter(|(_, listening)| listening.process == process)
                .map(|(address, _)| address.clone())
                .collect();
            gone.into_iter().filter_map(|address| state.listeners.remove(&address)).collect()
        };
        let ends = |processes: [ProcessId; 2]| {
            let of = processes.map(|end| end == process);
            of.contains(&true).then_some(of)
        };
        self.end_links(&|_, processes| ends(processes), silence);
        drop(dropped);
    }

    /// Lets `tamper` at every frame as it arrives, without making it longer or shorter: a planted bug.
    pub fn tamper_late(&self, tamper: Option<Tamper>) {
        self.state.lock().late = tamper;
    }

    /// Lets `tamper` at every frame that is sent: a planted bug.
    pub fn tamper(&self, tamper: Option<Tamper>) {
        self.state.lock().tamper = tamper;
    }

    /// Whether nobody can connect to a process that stands still: a planted bug.
    pub fn refuse_stopped(&self, refuses: bool) {
        self.state.lock().refuses_stopped = refuses;
    }

    /// Frames delivered so far.
    pub fn frames(&self) -> u64 {
        self.state.lock().frames
    }

    fn host_of(address: &str) -> Option<Host> {
        let (host, _) = address.split_once(':')?;
        host.strip_prefix('h')?.parse().ok().map(Host)
    }
}

struct HostNetwork {
    wires: Wires,
    host: Host,
    process: ProcessId,
}

impl Network for HostNetwork {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Link, NetworkError>> {
        let (wires, host, process) = (self.wires.clone(), self.host, self.process);
        let address = address.to_owned();
        Box::pin(async move { wires.connect(host, process, address).await })
    }

    fn listen(&self, address: &str) -> BoxFuture<'static, Result<Box<dyn Listener>, NetworkError>> {
        let opened = self.wires.listen(self.host, self.process, address);
        Box::pin(async move { opened.map(|listener| Box::new(listener) as Box<dyn Listener>) })
    }
}

impl Wires {
    async fn connect(&self, host: Host, process: ProcessId, address: String) -> Result<Link, NetworkError> {
        let unreachable =
            |reason: &str| NetworkError::Unreachable { address: address.clone(), reason: reason.to_owned() };
        let target = Self::host_of(&address).ok_or_else(|| unreachable("no such host"))?;
        let mut attempt = 0;
        loop {
            let delay = self.state.lock().delay(host, target);
            self.executor.sleep(delay).await;
            let blocked = {
                let state = self.state.lock();
                state.blocked.contains(&(host, target)) || state.blocked.contains(&(target, host))
            };
            if !blocked {
                break;
            }
            attempt += 1;
            if attempt == CONNECT_ATTEMPTS {
                return Err(unreachable("connection timed out"));
            }
            self.executor.sleep(CONNECT_PAUSE).await;
        }
        let near = self.arrive(host, process, &address);
        let back = self.state.lock().delay(target, host);
        self.executor.sleep(back).await;
        near.ok_or_else(|| NetworkError::Refused { address: address.clone() })
    }

    /// A connection request reaches its target: the link exists from now on if somebody listens.
    fn arrive(&self, host: Host, process: ProcessId, address: &str) -> Option<Link> {
        let (near, waker) = {
            let mut state = self.state.lock();
            let listening = state.listeners.get(address)?;
            let (to_host, to_process) = (listening.host, listening.process);
            if state.refuses_stopped && self.executor.is_paused(to_process) {
                return None;
            }
            let number = state.number();
            let is_stream = [STREAM_PORT, WEB_PORT].iter().any(|port| address.ends_with(&format!(":{port}")));
            let link = link::LinkState::new([host, to_host], [process, to_process], is_stream);
            state.links.insert(number, link);
            let near = self.end(Route { link: number, end: 0 }, address.to_owned());
            let far = self.end(Route { link: number, end: 1 }, format!("h{}:0", host.0));
            let listening = state.listeners.get_mut(address).expect("it was just there");
            listening.arrived.push_back(far);
            (near, listening.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(near)
    }

    fn listen(&self, host: Host, process: ProcessId, address: &str) -> Result<HostListener, NetworkError> {
        let malformed = || NetworkError::Unreachable {
            address: address.to_owned(),
            reason: "not an address of this host".to_owned(),
        };
        if Self::host_of(address) != Some(host) {
            return Err(malformed());
        }
        let (name, port) = address.split_once(':').ok_or_else(malformed)?;
        let mut state = self.state.lock();
        let address = match port {
            "0" => {
                state.port_next += 1;
                format!("{name}:{}", state.port_next)
            }
            _ => address.to_owned(),
        };
        if state.listeners.contains_key(&address) {
            return Err(NetworkError::AddressInUse { address });
        }
        let number = state.number();
        let listening = Listening { number, host, process, arrived: VecDeque::new(), waker: None };
        state.listeners.insert(address.clone(), listening);
        Ok(HostListener { wires: self.clone(), address, number })
    }
}

struct HostListener {
    wires: Wires,
    address: String,
    number: u64,
}

impl Listener for HostListener {
    fn accept(&mut self) -> BoxFuture<'_, Result<Link, NetworkError>> {
        Box::pin(std::future::poll_fn(|context| {
            let mut state = self.wires.state.lock();
            match state.listeners.get_mut(&self.address) {
                Some(listening) if listening.number == self.number => match listening.arrived.pop_front() {
                    Some(link) => Poll::Ready(Ok(link)),
                    None => {
                        listening.waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                },
                _ => Poll::Ready(Err(NetworkError::Closed)),
            }
        }))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for HostListener {
    fn drop(&mut self) {
        // Links that nobody accepted close when they are dropped, which needs the lock.
        let listening = {
            let mut state = self.wires.state.lock();
            match state.listeners.get(&self.address) {
                Some(listening) if listening.number == self.number => state.listeners.remove(&self.address),
                _ => None,
            }
        };
        drop(listening);
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.number_next += 1;
        self.number_next
    }

    /// How long the next frame takes from one host to the other.
    fn delay(&mut self, from: Host, to: Host) -> Duration {
        let Conditions { delay_us_min, delay_us_spread, slow_per_mille, .. } = self.conditions;
        let mut micros = delay_us_min + self.dice.below(delay_us_spread + 1);
        if self.dice.chance(slow_per_mille) {
            micros *= 20;
        }
        let slow = |host| self.slow.get(&host).copied().unwrap_or_default();
        Duration::from_micros(micros) + slow(from) + slow(to)
    }
}
