//! Sources of measures as real processes: a Ganglia daemon that is given members' figures, and pages for Prometheus. What they
//! say decides, and what they stop saying decides nothing.
//!
//! The engine is a shell script with three members, whose own figures would shrink the fleet at once.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use crate::cluster::{Process, TONTINE, command, free_port_base, tontine};

/// Longest wait for something to be told.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine adapter with members m1 to m3 on 127.0.0.21 to 127.0.0.23, idle by their own account.
const ENGINE: &str = r#"
member() {
  printf '{"id":"m%s","address":"127.0.0.2%s","state":"serving","measures":{"processor":{"value":1,"age_ms":0}}}' $1 $1
}
while read -r line; do
  id=${line#*'"id":'}; id=${id%%,*}
  case $line in
    *'"method":"describe"'*)
      result='{"name":"script","protocol":1,"acts_max":1,"drain_cancellable":true,"members_min":1}';;
    *) result='{"members":['$(member 1),$(member 2),$(member 3)']}';;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// A fleet of that engine that only observes, with one source, and its controller.
struct Fleet {
    folder: tempfile::TempDir,
    service: String,
    _controller: Process,
}

impl Fleet {
    fn new(source: &Json) -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let provider = [TONTINE, "adapter", "local", "--dir", &path("machines")];
        let (engine, provider) = (json!(["sh", "-c", ENGINE]), json!(provider));
        let adapters =
            format!("[engines.script]\ncommand = {engine}\n[providers.local]\ncommand = {provider}\n");
        std::fs::write(path("adapters.toml"), adapters).unwrap();
        let (kind, at) = (&source["kind"], &source["at"]);
        let policy = format!(
            "engine = \"script\"\nprovider = \"local\"\nmachine-type = \"local\"\nmin = 1\nmax = 6\nsample-age-max = 5\n\
             sources = [{{ kind = {kind}, at = {at} }}]\ncooldowns = {{ grow = 0, shrink = 0 }}\n\
             add = [{{ of = \"any\", is = \"above\", bound = 40, over = 5 }}]\n\
             remove = [{{ of = \"all\", is = \"at-most\", bound = 15, over = 5 }}]\n"
        );
        std::fs::write(path("shop.toml"), policy).unwrap();
        let service = format!("--coordination=dir:{}", path("service"));
        tontine(&["elastic", "apply", &path("shop.toml"), &service]).exits(0);
        let words = ["elastic", "run", &service, &format!("--adapters={}", path("adapters.toml"))];
        let controller = Process::start(&mut command(&words), folder.path().join("stderr"));
        let fleet = Fleet { folder, service, _controller: controller };
        fleet.await_status("m1 was seen", |status| !status["look"]["members"]["Ok"][0].is_null());
        let members = ["--member=m1", "--member=m2", "--member=m3"];
        let adopt = ["elastic", "adopt", "shop", members[0], members[1], members[2], &fleet.service];
        tontine(&adopt).exits(0);
        fleet
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn await_status(&self, what: &str, is_so: impl Fn(&Json) -> bool) -> Json {
        let began = Instant::now();
        loop {
            let status = tontine(&["elastic", "status", "shop", &self.service, "--json"]).exits(0).json();
            if is_so(&status) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "not in time: {what}: {status}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn await_failure(&self, why: &str) -> Json {
        self.await_status(why, |status| {
            let failures = status["look"]["failures"].as_array();
            failures.is_some_and(|all| all.iter().any(|one| one.as_str().unwrap().contains(why)))
        })
    }

    fn await_measured(&self, member: usize, value: f64) -> Json {
        self.await_status(&format!("{value} of member {member}"), |status| {
            status["look"]["members"]["Ok"][member]["measures"]["processor"]["value"] == value
        })
    }

    fn await_verdict(&self, verdict: &str) -> Json {
        self.await_status(verdict, |status| {
            let last = status["fleet"]["decisions"].as_array().and_then(|all| all.last().cloned());
            last.is_some_and(|decision| decision["verdict"] == verdict)
        })
    }
}

/// Without its source the fleet keeps its size and says why; its engine's own figures would have shrunk it.
fn holds_without(fleet: &Fleet, why: &str) {
    fleet.await_failure(why);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(12) {
        let status = tontine(&["elastic", "status", "shop", &fleet.service, "--json"]).exits(0).json();
        let last = status["fleet"]["decisions"].as_array().and_then(|all| all.last().cloned());
        let verdict = last.map_or(Json::Null, |decision| decision["verdict"].clone());
        assert_ne!(verdict, "remove", "it shrinks without samples: {status}");
        let measures = &status["look"]["members"]["Ok"][0]["measures"];
        assert!(measures["processor"].is_null(), "the engine's own figures filled in: {status}");
        std::thread::sleep(Duration::from_millis(500));
    }
    fleet.await_verdict("unknown");
}

#[test]
fn figures_in_a_real_gmond_decide_and_those_that_stop_decide_nothing() {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !is_there("gmond") || !is_there("gmetric") {
        eprintln!("SKIPPED: there is no gmond and no gmetric here; apt-get install ganglia-monitor has them");
        return;
    }
    let port = free_port_base();
    let fleet = Fleet::new(&json!({ "kind": "ganglia", "at": format!("127.0.0.1:{port}") }));
    fleet.await_failure("refused the connection");
    let conf = fleet.path().join("gmond.conf").display().to_string();
    let text = format!(
        "globals {{ daemonize = no setuid = no mute = no deaf = no host_dmax = 0 }}\ncluster {{ name = \"t\" }}\n\
         udp_send_channel {{ host = 127.0.0.1 port = {port} ttl = 1 }}\n\
         udp_recv_channel {{ port = {port} bind = 127.0.0.1 }}\n\
         tcp_accept_channel {{ port = {port} bind = 127.0.0.1 }}\n"
    );
    std::fs::write(&conf, text).unwrap();
    let mut start = Command::new("gmond");
    let mut gmond = Process::start(start.args(["-f", "-c", &conf]), fleet.path().join("gmond"));
    let say = |value: &str| {
        for member in 1..=3 {
            let spoof = format!("127.0.0.2{member}:m{member}");
            let words = ["-c", &conf, "-n", "processor", "-v", value, "-t", "double", "-S", &spoof];
            // It fails until gmond listens, and is called again.
            Command::new("gmetric").args(words).output().unwrap();
        }
    };
    let say_until = |value: &str, verdict: &str| {
        let began = Instant::now();
        loop {
            say(value);
            let history = tontine(&["elastic", "history", "shop", &fleet.service, "--json"]).exits(0).json();
            let last = history["decisions"].as_array().and_then(|all| all.last().cloned());
            if last.is_some_and(|decision| decision["verdict"] == verdict) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{value} did not lead to {verdict}: {history}");
            std::thread::sleep(Duration::from_millis(800));
        }
    };
    say_until("91.5", "add");
    fleet.await_measured(2, 91.5);
    say_until("20", "stay");
    gmond.stop(Signal::TERM);
    holds_without(&fleet, "refused the connection: no process listens there; see to the gmond there");
}

/// Serves a page with the counter of processor time at the given address, which grows by this many percent of a second.
fn exporter(address: Ipv4Addr, port: u16, percent: &Arc<AtomicU64>) {
    let listener = TcpListener::bind((address, port)).unwrap();
    let (percent, mut seconds, mut last) = (percent.clone(), 100.0, Instant::now());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let percent = percent.load(Ordering::Relaxed);
            seconds += last.elapsed().as_secs_f64() * percent as f64 / 100.0;
            last = Instant::now();
            // A page that is cut says no more than one that does not come.
            let page =
                format!("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {seconds}\n");
            let answered = stream.and_then(|stream| answer(stream, &page, percent == 0));
            drop(answered);
        }
    });
}

fn answer(mut stream: TcpStream, page: &str, is_cut: bool) -> std::io::Result<()> {
    let mut asked = [0; 4096];
    let count = stream.read(&mut asked)?;
    assert!(asked[..count].starts_with(b"GET /metrics HTTP/1.1\r\n"));
    let told = if is_cut { &page[..page.len() / 2] } else { page };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{told}", page.len())
}

#[test]
fn pages_for_prometheus_decide_and_those_that_are_cut_decide_nothing() {
    let (port, percent) = (free_port_base(), Arc::new(AtomicU64::new(90)));
    for member in 1..=3 {
        exporter(Ipv4Addr::new(127, 0, 0, 20 + member), port, &percent);
    }
    let at = format!("http://{{address}}:{port}/metrics");
    let fleet = Fleet::new(&json!({ "kind": "prometheus", "at": at }));
    let status = fleet.await_verdict("add");
    // A member whose page comes late has no figure in this look.
    let members = status["look"]["members"]["Ok"].as_array().unwrap();
    let measured =
        members.iter().find_map(|member| member["measures"]["processor"]["value"].as_f64()).unwrap();
    assert!((60.0..120.0).contains(&measured), "{status}");
    percent.store(20, Ordering::Relaxed);
    fleet.await_verdict("stay");
    percent.store(0, Ordering::Relaxed);
    holds_without(&fleet, "it gave nothing of m1: the answer was cut; see to its exporter");
}
