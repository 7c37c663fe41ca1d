//! Who is headmaster: one living session at a time, whatever the service loses, and somebody again after each end.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use control::election::{Candidacy, Candidate, ElectionError, holder, stand};
use control::lease;
use coordination::documents::headmaster_path;
use coordination::memory::{MemoryFaults, MemoryService, MemorySession};
use coordination::{CoordinationError, CoordinationService, Expected};
use futures_util::FutureExt;
use model::{Moment, WallMillis};
use runtime::{BoxFuture, Clock};

fn named(process: &str) -> Candidate {
    Candidate::new(process.to_owned())
}

async fn standing(service: &MemoryService, process: &str) -> (Arc<MemorySession>, Candidacy) {
    let session = Arc::new(service.open());
    let candidacy = stand(session.clone(), &headmaster_path(), &named(process)).await.unwrap();
    (session, candidacy)
}

/// A clock of which each sleep lasts until the sleeper is looked at again.
struct Glances;

impl Clock for Glances {
    fn now(&self) -> Moment {
        Moment::default()
    }

    fn wall(&self) -> WallMillis {
        WallMillis(1_760_000_000_000)
    }

    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        let mut slept = false;
        Box::pin(poll_fn(move |_| match std::mem::replace(&mut slept, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }))
    }
}

/// Whether the candidate knows by now that it is elected.
fn is_elected(candidacy: &Candidacy) -> bool {
    candidacy.elected().now_or_never().is_some_and(|elected| elected.is_ok())
}

#[tokio::test]
async fn the_first_candidate_holds_the_office_and_the_next_one_follows_it() {
    let service = MemoryService::new();
    assert_eq!(holder(&service.open(), &headmaster_path()).await.unwrap(), None);
    let (first, one) = standing(&service, "one").await;
    let (_second, two) = standing(&service, "two").await;
    let (third, three) = standing(&service, "three").await;
    assert_eq!([is_elected(&one), is_elected(&two), is_elected(&three)], [true, false, false]);
    assert_eq!(holder(&*third, &headmaster_path()).await.unwrap().unwrap().1, named("one"));
    service.kill(first.session());
    one.ended().await.unwrap();
    assert_eq!([is_elected(&two), is_elected(&three)], [true, false]);
    two.resign().await.unwrap();
    two.ended().await.unwrap();
    assert!(is_elected(&three));
    assert_eq!(holder(&*third, &headmaster_path()).await.unwrap().unwrap().1, named("three"));
}

#[tokio::test]
async fn an_office_that_is_not_renewed_ends_by_time_and_one_that_is_does_not() {
    let service = MemoryService::new();
    let clock: Arc<dyn Clock> = Arc::new(Glances);
    let (first, one) = standing(&service, "one").await;
    let (second, two) = standing(&service, "two").await;
    let (third, three) = standing(&service, "three").await;
    let [first, second, third]: [Arc<dyn CoordinationService>; 3] = [first, second, third];
    assert!(lease::is_needed(&*first));
    let names = [named("one"), named("two")];
    let mut renewing = Box::pin(lease::renew(&first, &clock, (&one, &names[0])));
    let mut looking = Box::pin(lease::oversee(&second, &clock, &two));
    for _ in 0..3 * lease::LOOKS {
        assert!(renewing.as_mut().now_or_never().is_none());
        assert!(looking.as_mut().now_or_never().is_none());
        assert!(is_elected(&one), "it is renewed");
    }
    // The last renewal was seen once.
    for _ in 2..lease::LOOKS {
        assert!(looking.as_mut().now_or_never().is_none());
        assert!(is_elected(&one), "a look is missing");
    }
    assert!(looking.as_mut().now_or_never().is_none());
    one.ended().await.unwrap();
    assert_eq!([is_elected(&two), is_elected(&three)], [true, false]);
    assert!(looking.as_mut().now_or_never().is_some(), "it comes first itself");
    // Nobody but who comes first renews anything: a candidate that waits and hangs keeps its place.
    let mut waiting = Box::pin(lease::oversee(&third, &clock, &three));
    let mut renewing = Box::pin(lease::renew(&second, &clock, (&two, &names[1])));
    for _ in 0..3 * lease::LOOKS {
        assert!(renewing.as_mut().now_or_never().is_none());
        assert!(waiting.as_mut().now_or_never().is_none());
    }
    assert_eq!([is_elected(&two), is_elected(&three)], [true, false]);
    let (_, found) = holder(&*third, &headmaster_path()).await.unwrap().unwrap();
    assert_eq!((found.overdue(1_760_000_011_999), found.process.as_str()), (None, "two"));
    assert_eq!(found.overdue(1_760_000_012_000), Some(coordination::documents::office::LEASE));
}

#[tokio::test]
async fn a_candidate_in_the_middle_that_leaves_elects_nobody() {
    let service = MemoryService::new();
    let (_first, one) = standing(&service, "one").await;
    let (second, two) = standing(&service, "two").await;
    let (_third, three) = standing(&service, "three").await;
    let mut waiting = Box::pin(three.elected());
    assert!(waiting.as_mut().now_or_never().is_none());
    service.kill(second.session());
    assert!(waiting.as_mut().now_or_never().is_none(), "it waits for the first one now");
    assert!(is_elected(&one));
    assert!(matches!(two.elected().await, Err(ElectionError::Coordination(CoordinationError::SessionLost))));
    one.resign().await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn an_office_whose_document_an_operator_deletes_has_ended() {
    let service = MemoryService::new();
    let (_first, one) = standing(&service, "one").await;
    let (second, two) = standing(&service, "two").await;
    let mut ended = Box::pin(one.ended());
    assert!(ended.as_mut().now_or_never().is_none());
    second.delete(one.path(), Expected::Any).await.unwrap();
    ended.await.unwrap();
    assert!(is_elected(&two));
    assert_eq!(one.elected().await, Err(ElectionError::Removed { path: one.path().clone() }));
}

#[tokio::test]
async fn a_session_becomes_a_candidate_only_once() {
    let service = MemoryService::new();
    let (session, one) = standing(&service, "one").await;
    let again = stand(session.clone(), &headmaster_path(), &named("one")).await.unwrap();
    assert_eq!(one.path(), again.path());
    again.resign().await.unwrap();
    assert_eq!(holder(&*session, &headmaster_path()).await.unwrap(), None, "no second document is left");
}

/// One process that wants the office, over a service that loses sessions and answers.
struct Contender {
    session: Arc<MemorySession>,
    candidacy: Option<Candidacy>,
}

impl Contender {
    fn new(service: &MemoryService) -> Contender {
        Contender { session: Arc::new(service.open()), candidacy: None }
    }

    /// Does what can be done without waiting; true when it is elected.
    fn act(&mut self, service: &MemoryService) -> bool {
        if self.session.lost().now_or_never().is_some() {
            *self = Contender::new(service);
        }
        if self.candidacy.is_none() {
            self.candidacy = stand(self.session.clone(), &headmaster_path(), &named("any"))
                .now_or_never()
                .and_then(Result::ok);
        }
        self.candidacy.as_ref().is_some_and(is_elected)
    }

    fn owns(&self, observer: &MemorySession) -> bool {
        let office = holder(observer, &headmaster_path())
            .now_or_never()
            .expect("memory answers at once")
            .expect("no faults");
        let Some((path, _)) = office else { return false };
        let document =
            observer.get(&path).now_or_never().expect("memory answers at once").expect("it is there");
        document.stat.owner == Some(self.session.session())
    }
}

#[test]
fn at_any_moment_at_most_one_living_session_is_elected_whatever_the_service_loses() {
    let mut elections = 0;
    for seed in 0..300 {
        let service = MemoryService::new();
        let mut contenders: Vec<Contender> = (0..3).map(|_| Contender::new(&service)).collect();
        let behind_at_first = seed % 2 == 0;
        let faults = MemoryFaults {
            seed,
            lost_per_mille: 30,
            indeterminate_per_mille: 200,
            behind_max: 20,
            behind_at_first,
        };
        for turn in 0..40 {
            service.set_faults(MemoryFaults { seed: seed * 1000 + turn, ..faults });
            let elected: Vec<bool> = contenders.iter_mut().map(|one| one.act(&service)).collect();
            service.set_faults(MemoryFaults::default());
            let observer = service.open();
            for (one, elected) in contenders.iter().zip(elected) {
                let alive = one.session.lost().now_or_never().is_none();
                if elected && alive {
                    assert!(one.owns(&observer), "seed {seed}, turn {turn}: elected without the office");
                    elections += 1;
                }
            }
        }
        let elected = contenders.iter_mut().filter_map(|one| one.act(&service).then_some(())).count();
        assert_eq!(elected, 1, "seed {seed}: somebody holds the office once the faults end");
    }
    assert!(elections > 1000, "{elections}");
}
