//! Whether a headmaster is at work, and which order waits for one.

use std::time::Duration;

use model::balance::Turned;
use model::order::{Balancing, Office};

use super::finding::{Code, Finding};
use crate::context::CliContext;
use crate::output::program;

/// A headmaster answers within a second; one that waits for silent nodes, within ten.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// How long a successor may take: `dev` and `serve` start another process five seconds after one has ended.
const SUCCESSION_TIME_MAX: Duration = Duration::from_secs(8);
/// Pause between two looks for one.
const SUCCESSION_PAUSE: Duration = Duration::from_secs(1);

/// The state of the office. Where nobody holds it, this looks again until a successor of one that has ended would be there.
pub(super) async fn look(shared: &CliContext) -> Option<Office> {
    let began = tokio::time::Instant::now();
    loop {
        let office = crate::orders::look(shared).await;
        if !office.as_ref().is_some_and(is_vacant) || began.elapsed() >= SUCCESSION_TIME_MAX {
            return office;
        }
        tokio::time::sleep(SUCCESSION_PAUSE).await;
    }
}

/// Whether nobody holds the office, as far as its documents can be read.
fn is_vacant(office: &Office) -> bool {
    office.unread.is_none() && office.generation.is_some() && office.headmaster.is_none()
}

/// What is wrong with the office; of several things the one that explains the others.
pub(super) fn found(seen: &Office) -> Option<Finding> {
    missing(seen).or_else(|| silent(seen)).or_else(|| unanswered(seen))
}

/// That the autopilot does not act any more, or follows a policy that is not the one that is kept.
pub(super) fn stopped(balancing: &Balancing) -> impl Iterator<Item = Finding> {
    let stopped =
        balancing.policy.as_ref().filter(|policy| matches!(policy.because, Turned::Misjudged { .. }));
    let stopped = stopped.map(|policy| {
        finding(
            Code::BalanceStopped,
            crate::words::policy(policy),
            format!("{} balance why; then `tontine balance on`, or `tontine balance off`", program()),
        )
    });
    let unread = balancing.verdict.as_ref().and_then(|verdict| verdict.policy_unread.as_ref());
    let unread = unread.map(|reason| {
        finding(
            Code::BalanceUnread,
            format!("the policy of the autopilot cannot be read, and the last one that could is in force: {reason}"),
            format!(
                "write it anew: {} balance set NAME=VALUE",
                program()
            ),
        )
    });
    stopped.into_iter().chain(unread)
}

/// That no headmaster runs.
fn missing(seen: &Office) -> Option<Finding> {
    if !is_vacant(seen) {
        return None;
    }
    let waits = waiting(seen).map_or_else(String::new, |order| format!("; {order}"));
    Some(finding(
        Code::HeadmasterMissing,
        format!("no headmaster runs: nodes serve requests, and no plan or order is carried out{waits}"),
        format!(
            "`tontine dev` and `tontine serve` start one beside themselves unless --no-headmaster is given; to start one \
             alone: {} headmaster --coordination {}",
            program(),
            crate::holder::shell(std::slice::from_ref(&seen.service)),
        ),
    ))
}

/// A headmaster that hangs, and so keeps an order waiting, too.
fn silent(seen: &Office) -> Option<Finding> {
    let holder = seen.headmaster.as_ref()?;
    let (process, silent) = (&holder.process, Duration::from_millis(holder.silent_ms?));
    let waits = waiting(seen).map_or_else(String::new, |order| format!("; {order}"));
    let program = program();
    Some(finding(
        Code::HeadmasterSilent,
        format!(
            "the headmaster, {process}, has not renewed its lease for {} s: it hangs, or cannot write documents; plans and orders wait for it{waits}",
            silent.as_secs()
        ),
        format!(
            "read its log, resume it with `kill -CONT`, or end it: another candidate takes over. If there is none, start one with `{program} \
             headmaster --coordination ADDRESS`, the address that nodes were given: it takes over within half a minute"
        ),
    ))
}

/// An order that a headmaster should have seen to long ago.
fn unanswered(seen: &Office) -> Option<Finding> {
    let (number, by, age) = oldest(seen).filter(|(.., age)| *age >= ANSWERED_WITHIN)?;
    let program = program();
    Some(finding(
        Code::OrderWaiting,
        format!(
            "order {number} of {by} was given {} s ago, and the headmaster has not answered it",
            age.as_secs()
        ),
        format!(
            "see whose process holds the office with `{program} coordination show /headmaster`: the first candidate; resume it \
             with `kill -CONT`, or end it, and another one takes over"
        ),
    ))
}

/// The oldest order that waits, in words.
fn waiting(seen: &Office) -> Option<String> {
    let (number, by, age) = oldest(seen)?;
    Some(format!("order {number} of {by} waits for {} s", age.as_secs()))
}

/// The oldest order that waits: its number, who gave it, and for how long it waits.
fn oldest(seen: &Office) -> Option<(u64, &str, Duration)> {
    let order = seen.order.as_ref()?;
    let now = crate::clocks::now_ms().unsigned_abs();
    let age = Duration::from_millis(now.saturating_sub(order.document.given_ms));
    Some((order.number, &order.document.by, age))
}

fn finding(code: Code, what: String, next: String) -> Finding {
    Finding { code, node: None, store: None, what, next }
}

#[cfg(test)]
mod tests {
    use model::order::{Given, Holder, Order, OrderDocument};
    use model::{Generation, NodeId};

    use super::*;

    /// An office with an order that waits for 20 s.
    fn office(headmaster: Option<Holder>) -> Office {
        let given_ms = crate::clocks::now_ms().unsigned_abs() - 20_000;
        let order = Order::Admit { node: NodeId(4) };
        let document = OrderDocument { order, by: "ann at h1".to_owned(), given_ms, answer: None };
        Office {
            service: "dir:/data/coordination".to_owned(),
            generation: Some(Generation(3)),
            headmaster,
            order: Some(Given { number: 69, document }),
            ..Office::default()
        }
    }

    /// The doctor said *healthy* where every order was refused.
    #[test]
    fn that_no_headmaster_runs_is_found_where_the_documents_can_be_read() {
        let vacant = office(None);
        let found = |office: &Office| super::found(office);
        let finding = found(&vacant).unwrap();
        assert!(finding.is_bad() && finding.code == Code::HeadmasterMissing);
        let what = "no headmaster runs: nodes serve requests, and no plan or order is carried out; order 69 of ann at h1 waits \
                    for 20 s";
        assert_eq!(finding.what, what);
        assert!(
            finding.next.ends_with(" headmaster --coordination dir:/data/coordination"),
            "{}",
            finding.next
        );
        let unread = Office { unread: Some("no answer".to_owned()), ..Office::default() };
        assert!(found(&unread).is_none() && found(&Office::default()).is_none());
    }

    #[test]
    fn a_headmaster_that_hangs_and_one_that_does_not_answer_are_told_apart() {
        let process = "process 7 of h1".to_owned();
        let finding =
            found(&office(Some(Holder { process: process.clone(), silent_ms: Some(30_000) }))).unwrap();
        assert_eq!(finding.code, Code::HeadmasterSilent);
        assert!(finding.what.starts_with("the headmaster, process 7 of h1, "), "{}", finding.what);
        assert!(
            finding.what.ends_with("wait for it; order 69 of ann at h1 waits for 20 s"),
            "{}",
            finding.what
        );
        let mut late = office(Some(Holder { process, silent_ms: None }));
        assert_eq!(found(&late).unwrap().code, Code::OrderWaiting);
        late.order = None;
        assert!(found(&late).is_none());
    }

    #[test]
    fn an_autopilot_that_stopped_itself_or_lost_its_policy_is_found() {
        use model::balance::{Mode, Policy, Says, Verdict};
        let codes =
            |balancing: &Balancing| stopped(balancing).map(|finding| finding.code).collect::<Vec<_>>();
        let because = Turned::Misjudged { plans: vec![4, 5, 7] };
        let policy = Policy { because, ..Policy::unknown() };
        let mut balancing = Balancing { policy: Some(policy), verdict: None };
        assert_eq!(codes(&balancing), [Code::BalanceStopped]);
        let what = stopped(&balancing).next().unwrap().what;
        assert!(what.contains("plans 4, 5, 7 came out worse"), "{what}");
        let verdict = Verdict {
            at_ms: 0,
            mode: Mode::Observe,
            policy_unread: Some("aim from 101 to 999, not 7".to_owned()),
            says: Says::Off,
            mean: 0,
            thought_of: 0,
            seen: Vec::new(),
            lost: Vec::new(),
            away: Vec::new(),
        };
        balancing = Balancing { policy: None, verdict: Some(verdict) };
        assert_eq!(codes(&balancing), [Code::BalanceUnread]);
        assert!(codes(&Balancing { policy: Some(Policy::unknown()), verdict: None }).is_empty());
    }
}
