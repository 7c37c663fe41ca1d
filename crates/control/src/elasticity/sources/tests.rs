//! Sources over answers that a test gives: what becomes a measure, what is told, and which of two sources counts.

use std::sync::Mutex;

use model::elasticity::{Rule, Spread};
use runtime::BoxFuture;
use runtime::network::NetworkError;
use runtime::network::fetch::FetchError;

use super::*;

const GMOND: &str = include_str!("gmond.xml");

/// A clock that goes when it is told to; and what each server answers. One that is not named refuses.
#[derive(Default)]
struct World {
    millis: Mutex<u64>,
    answers: Mutex<BTreeMap<String, Vec<u8>>>,
    asked: Mutex<Vec<Question>>,
}

impl Clock for World {
    fn now(&self) -> Moment {
        Moment { nanos: *self.millis.lock().unwrap() * 1_000_000 }
    }

    fn wall(&self) -> WallMillis {
        WallMillis(1_000_000 + *self.millis.lock().unwrap())
    }

    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

impl Fetcher for World {
    fn fetch(&self, question: Question) -> BoxFuture<'static, Result<Vec<u8>, FetchError>> {
        let address = question.address.clone();
        self.asked.lock().unwrap().push(question);
        let answer = self.answers.lock().unwrap().get(&address).cloned();
        let refused = FetchError::NotConnected(NetworkError::Refused { address });
        Box::pin(async move { answer.ok_or(refused) })
    }
}

struct Tested {
    world: Arc<World>,
    sources: Sources,
    policy: Policy,
    failures: Vec<String>,
}

impl Tested {
    fn new(sources: &[(SourceKind, &str)]) -> Tested {
        let rule = |measure: &str| Rule { measure: measure.to_owned(), ..Policy::paper_rules().0[0].clone() };
        let sources = sources.iter().map(|(kind, at)| Source { kind: *kind, at: (*at).to_owned() }).collect();
        let text = r#"{"engine":"e","provider":"p","machine-type":"m","min":1,"max":9}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        let add = vec![rule("load_one"), rule("requests_total"), Rule { of: Spread::Mean, ..rule("depth") }];
        let policy = Policy { sources, add, ..policy };
        policy.check().unwrap();
        let world = Arc::new(World::default());
        let sources = Sources::new(world.clone(), world.clone());
        Tested { world, sources, policy, failures: Vec::new() }
    }

    fn says(&self, address: &str, answer: impl Into<Vec<u8>>) {
        self.world.answers.lock().unwrap().insert(address.to_owned(), answer.into());
    }

    fn page(&self, address: &str, page: &str) {
        self.says(address, format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len()));
    }

    fn silent(&self, address: &str) {
        self.world.answers.lock().unwrap().remove(address);
    }

    /// A turn after this many milliseconds with these members; what is measured, each as `value age`.
    fn turn(&mut self, millis: u64, members: &[Member]) -> BTreeMap<String, String> {
        *self.world.millis.lock().unwrap() += millis;
        self.failures =
            futures_util::FutureExt::now_or_never(self.sources.ask(&self.policy, members)).unwrap();
        let mut members = members.to_vec();
        self.sources.lay_over(&mut members, self.world.wall());
        let told = members.iter().flat_map(|member| {
            let measures = member.measures.iter();
            measures
                .map(|(name, it)| (format!("{} {name}", member.id), format!("{} {}", it.value, it.age_ms)))
        });
        told.collect()
    }

    fn fails_with(&self, why: &str) {
        assert!(self.failures.iter().any(|failure| failure.contains(why)), "{why}: {:?}", self.failures);
    }
}

/// Members that serve, of which `observe` gives processor time and operations.
fn members(addresses: &[&str]) -> Vec<Member> {
    let measured = |value| Measured { value, age_ms: 10 };
    let member = |(number, address): (usize, &&str)| Member {
        id: format!("m{}", number + 1),
        address: (!address.is_empty()).then(|| (*address).to_owned()),
        state: MemberState::Serving,
        permille: None,
        detail: None,
        measures: [("operations", 900.0), ("processor", 5.0)]
            .map(|(name, value)| (name.to_owned(), measured(value)))
            .into(),
    };
    addresses.iter().enumerate().map(member).collect()
}

fn told(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn ganglia_wins_over_observe_and_what_it_lacks_is_missing() {
    let mut tested = Tested::new(&[(SourceKind::Ganglia, "gmond:8649")]);
    let members = members(&["127.0.0.1", "n2", "10.0.0.9"]);
    assert_eq!(tested.turn(0, &members), told(&[]), "nobody knows yet what the source gives");
    tested.fails_with("source ganglia at gmond:8649 failed: gmond:8649 refused the connection");
    tested.fails_with("`tontine elastic apply`");
    tested.says("gmond:8649", GMOND);
    let whole = told(&[
        ("m1 load_one", "5.25 3000"),
        ("m1 operations", "900 10"),
        ("m1 processor", "41.5 2000"),
        ("m2 operations", "900 10"),
        ("m2 processor", "42.5 2000"),
        ("m3 operations", "900 10"),
    ]);
    assert_eq!(tested.turn(1000, &members), whole);
    tested.fails_with("it knows no host 10.0.0.9 of m3");
    assert_eq!(tested.world.asked.lock().unwrap().last().unwrap().words, b"");
    // Cut: refused as a whole, and `observe` does not fill in.
    tested.says("gmond:8649", GMOND.trim_end().strip_suffix("</GANGLIA_XML>").unwrap());
    let only = |left: &BTreeMap<String, String>| left.keys().all(|name| name.ends_with(" operations"));
    let left = tested.turn(1000, &members);
    assert!(left.len() == 3 && only(&left), "{left:?}");
    tested.fails_with("the document is refused");
    // Without the source, `observe` counts again.
    tested.policy.sources.clear();
    assert_eq!(tested.turn(1000, &members)["m1 processor"], "5 10");
    assert!(tested.failures.is_empty());
}

#[test]
fn a_report_of_ganglia_is_one_sample_however_its_seconds_are_counted() {
    let mut tested = Tested::new(&[(SourceKind::Ganglia, "gmond:8649")]);
    let members = members(&["127.0.0.2"]);
    tested.says("gmond:8649", GMOND);
    assert_eq!(tested.turn(0, &members)["m1 processor"], "42.5 2000");
    // 1.9 s later the same report is 3 s old by its own count.
    let later = GMOND.replace("TN=\"2\" TMAX=\"20\"", "TN=\"3\" TMAX=\"20\"");
    tested.says("gmond:8649", later);
    assert_eq!(tested.turn(1900, &members)["m1 processor"], "42.5 3900");
    tested.says("gmond:8649", GMOND);
    assert_eq!(tested.turn(3000, &members)["m1 processor"], "42.5 2000", "another report");
}

#[test]
fn a_source_is_asked_once_a_second_and_ages_meanwhile() {
    let mut tested = Tested::new(&[(SourceKind::Ganglia, "gmond:8649")]);
    let members = members(&["127.0.0.2"]);
    tested.says("gmond:8649", GMOND);
    tested.turn(0, &members);
    assert_eq!(tested.turn(999, &members)["m1 processor"], "42.5 2999");
    assert_eq!(tested.world.asked.lock().unwrap().len(), 1);
}

#[test]
fn prometheus_gives_gauges_as_they_are_and_counters_by_the_second() {
    let mut tested = Tested::new(&[(SourceKind::Prometheus, "http://{address}:9100/metrics")]);
    let members = members(&["10.0.0.1", "10.0.0.2"]);
    let page = |cpu: f64, requests: f64| {
        format!(
            "process_cpu_seconds_total {cpu}\nrequests_total{{a=\"b\"}} {requests}\nrequests_total 100\ndepth 3\n"
        )
    };
    tested.page("10.0.0.1:9100", &page(12.0, 1000.0));
    let first = tested.turn(0, &members);
    assert_eq!(first["m1 depth"], "3 0");
    assert!(!first.contains_key("m1 processor") && !first.contains_key("m1 requests_total"), "{first:?}");
    assert!(!first.contains_key("m2 processor"), "`observe` filled in: {first:?}");
    tested.fails_with("it gave nothing of m2: 10.0.0.2:9100 refused the connection");
    let asked = String::from_utf8(tested.world.asked.lock().unwrap()[0].words.clone()).unwrap();
    assert!(asked.starts_with("GET /metrics HTTP/1.1\r\nHost: 10.0.0.1:9100\r\n"), "{asked}");
    tested.page("10.0.0.1:9100", &page(13.0, 1500.0));
    let second = tested.turn(2000, &members);
    assert_eq!((&*second["m1 processor"], &*second["m1 requests_total"]), ("50 0", "250 0"));
    // A failed scrape is no sample; the next one tells the mean over both spans.
    tested.silent("10.0.0.1:9100");
    assert_eq!(
        tested.turn(2000, &members),
        told(&[("m1 operations", "900 10"), ("m2 operations", "900 10")])
    );
    tested.page("10.0.0.1:9100", &page(15.0, 1500.0));
    let third = tested.turn(2000, &members);
    assert_eq!((&*third["m1 processor"], &*third["m1 requests_total"]), ("50 0", "0 0"));
    // One that goes back is no sample, and the next goes on from there.
    tested.page("10.0.0.1:9100", &page(0.5, 10.0));
    let back = tested.turn(2000, &members);
    assert!(!back.contains_key("m1 processor") && !back.contains_key("m1 requests_total"), "{back:?}");
    tested.page("10.0.0.1:9100", &page(1.5, 20.0));
    assert_eq!(tested.turn(2000, &members)["m1 requests_total"], "5 0");
    // A reading of long ago says nothing of now.
    tested.silent("10.0.0.1:9100");
    tested.turn(1000, &members);
    tested.page("10.0.0.1:9100", &page(2.0, 30.0));
    assert!(!tested.turn(30_000, &members).contains_key("m1 processor"));
}

/// A policy that wants samples of five seconds once got none of any counter: idle fleets are looked at as seldom.
#[test]
fn a_counter_gains_over_the_span_of_an_idle_turn_however_young_samples_must_be() {
    let mut tested = Tested::new(&[(SourceKind::Prometheus, "http://{address}:1/")]);
    tested.policy.sample_age_max = 1;
    for (seconds, expected) in [("10", None), ("13", Some("60 0"))] {
        tested.page("10.0.0.1:1", &format!("process_cpu_seconds_total {seconds}\n"));
        let measured = tested.turn(5000, &members(&["10.0.0.1"]));
        assert_eq!(measured.get("m1 processor").map(String::as_str), expected);
    }
}

#[test]
fn a_value_that_is_no_number_is_ignored_and_an_age_on_the_page_is_used() {
    let mut tested = Tested::new(&[(SourceKind::Prometheus, "http://{address}/")]);
    let members = members(&["10.0.0.1"]);
    tested.page("10.0.0.1:80", "depth NaN\nprocessor +Inf\nload_one 2 999000\nrequests_total 5 999000\n");
    let first = tested.turn(0, &members);
    assert_eq!(first, told(&[("m1 load_one", "2 1000"), ("m1 operations", "900 10")]));
    // A page that freezes gives times that stand still: a counter's gain over no time is none.
    let frozen = tested.turn(5000, &members);
    assert_eq!(frozen, told(&[("m1 load_one", "2 6000"), ("m1 operations", "900 10")]));
    tested.page("10.0.0.1:80", "load_one 2 9999000\nrequests_total 25 1004000\n");
    let ahead = tested.turn(2000, &members);
    assert_eq!(ahead, told(&[("m1 operations", "900 10"), ("m1 requests_total", "4 3000")]));
}

#[test]
fn of_two_sources_the_first_counts_for_what_it_gives() {
    let kinds = [(SourceKind::Prometheus, "http://{address}:1/"), (SourceKind::Ganglia, "gmond:8649")];
    let mut tested = Tested::new(&kinds);
    let members = members(&["127.0.0.1"]);
    tested.says("gmond:8649", GMOND);
    let half = tested.turn(0, &members);
    assert!(!half.contains_key("m1 operations"), "one of the sources was never heard: {half:?}");
    tested.page("127.0.0.1:1", "processor 77\n");
    let both = tested.turn(1000, &members);
    assert_eq!((&*both["m1 processor"], &*both["m1 load_one"]), ("77 0", "5.25 3000"));
    let mut members = members.clone();
    tested.policy.sources.remove(0);
    tested.turn(1000, &members);
    *tested.world.millis.lock().unwrap() += 1000;
    tested.policy.sources.clear();
    tested.sources.follow(&tested.policy);
    let moved = tested.sources.lay_over(&mut members, tested.world.wall());
    assert_eq!(moved, ["load_one", "processor"], "older samples of these are the source's");
}

#[test]
fn a_source_that_is_of_no_use_and_members_that_cannot_be_told_apart_are_told() {
    let mut tested = Tested::new(&[(SourceKind::Prometheus, "http://{address}:1/")]);
    tested.page("10.0.0.1:1", "something_else 1\n");
    assert_eq!(tested.turn(0, &members(&["10.0.0.1"])), told(&[]));
    tested.fails_with("it gives none of the measures by which the size is chosen (depth, load_one, ");
    assert_eq!(tested.turn(1000, &members(&["10.0.0.1", "10.0.0.1", ""])), told(&[]));
    tested.fails_with("sources measure nothing of m1, m2: they share the address 10.0.0.1");
    tested.fails_with("sources measure nothing of m3: the engine adapter gives no address of it");
    tested.turn(1000, &members(&["h1", "h2", "h3", "h4", "h 5\r\nX"]));
    tested.fails_with(
        "it gave nothing of m3: h3:1 refused the connection: no process listens there, and 2 more like it",
    );
    assert_eq!(tested.failures.len(), 3);
    tested.says("10.0.0.1:1", "HTTP/1.1 401 Unauthorized\r\n\r\n");
    tested.turn(1000, &members(&["10.0.0.1"]));
    tested.fails_with("HTTP status 401 instead of 200");
}
