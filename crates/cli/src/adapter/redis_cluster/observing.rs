//! The members as the cluster knows them, and what they measure of themselves.
//!
//! Servers tell counters that only grow. A rate is what they grew by since this adapter last looked, or within half a second
//! where it has not looked lately.
//!
//! Must never: pass the silence of a server off as rest. A server that does not answer has no measures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use model::elasticity::adapter::{Measured, Member, MemberState, Members};

use super::Redis;
use super::map::{Id, SLOTS};
use super::sight::{ClusterSight, Server, ServerAnswer};
use crate::adapter::rpc::RpcFailure;

/// Processor time of the server, in percent of one processor: one thread serves its clients.
const PROCESSOR: &str = "processor";
/// Commands in a second.
const OPERATIONS: &str = "operations";
/// Bytes of memory that the server has in use.
const MEMORY_BYTES: &str = "memory-bytes";
/// What is measured of each member.
pub(super) const MEASURES: [&str; 3] = [PROCESSOR, OPERATIONS, MEMORY_BYTES];

/// Shortest and longest time for which a rate says something.
const SPAN_MIN: Duration = Duration::from_millis(500);
const SPAN_MAX: Duration = Duration::from_secs(60);

/// What servers had counted when they were last asked.
pub(super) type Samples = BTreeMap<Id, RedisSample>;

/// What a server has counted since it started.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RedisSample {
    /// Drawn anew at each start.
    run: String,
    at: Instant,
    processor_s: f64,
    operations: f64,
    memory_bytes: f64,
}

impl RedisSample {
    /// Reads the answer to `INFO`.
    fn parse(text: &str, at: Instant) -> Option<RedisSample> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let number =
            |name: &str| field(name)?.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
        Some(RedisSample {
            run: field("run_id")?.to_owned(),
            at,
            processor_s: number("used_cpu_sys")? + number("used_cpu_user")?,
            operations: number("total_commands_processed")?,
            memory_bytes: number("used_memory")?,
        })
    }

    /// Seconds since an earlier one, if a rate can be told from the two.
    fn span_s(&self, earlier: &RedisSample) -> Option<f64> {
        let span = self.at.checked_duration_since(earlier.at)?;
        let grows = self.processor_s >= earlier.processor_s && self.operations >= earlier.operations;
        let told = self.run == earlier.run && grows && (SPAN_MIN..=SPAN_MAX).contains(&span);
        told.then_some(span.as_secs_f64())
    }

    fn measures(&self, earlier: Option<&RedisSample>) -> BTreeMap<String, Measured> {
        let age_ms = u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let told = |name: &str, value: f64| (name.to_owned(), Measured { value, age_ms });
        let mut measures = BTreeMap::from([told(MEMORY_BYTES, self.memory_bytes)]);
        if let Some((earlier, span_s)) = earlier.and_then(|one| Some((one, self.span_s(one)?))) {
            measures.extend([
                told(PROCESSOR, (self.processor_s - earlier.processor_s) * 100.0 / span_s),
                told(OPERATIONS, (self.operations - earlier.operations) / span_s),
            ]);
        }
        measures
    }
}

impl Redis {
    /// All members. Slots that were left open are seen to from now on.
    pub(super) async fn observe(&self) -> Result<Members, RpcFailure> {
        let mut seen = self.servers.look().await?;
        if seen.any_open() {
            self.mover.wake();
        }
        let mut earlier = self.samples.lock().clone();
        let mut samples = samples(&mut seen).await;
        let lacks =
            |(id, now): (&Id, &RedisSample)| earlier.get(id).is_none_or(|one| now.span_s(one).is_none());
        if samples.iter().any(lacks) {
            earlier.extend(samples);
            tokio::time::sleep(SPAN_MIN + Duration::from_millis(20)).await;
            samples = self::samples(&mut seen).await;
        }
        let sight = Sight { seen: &seen, draining: seen.draining(), trouble: self.mover.trouble() };
        let members = seen.servers.iter().map(|(id, server)| {
            let measures = samples.get(id).map(|now| now.measures(earlier.get(id))).unwrap_or_default();
            Member { measures, ..sight.member(id, server) }
        });
        let members = members.collect();
        *self.samples.lock() = samples;
        Ok(Members { members })
    }
}

/// What those count that answer.
async fn samples(seen: &mut ClusterSight) -> Samples {
    let asked = seen.servers.iter_mut().filter_map(|(id, server)| Some((id, server.answer.as_mut().ok()?)));
    let asked = asked.map(|(id, ServerAnswer { link, .. })| async move {
        let text = link.text(&["INFO"]).await.ok()?;
        Some((id.clone(), RedisSample::parse(&text, Instant::now())?))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// What there is to see.
struct Sight<'a> {
    seen: &'a ClusterSight,
    draining: BTreeSet<Id>,
    trouble: Option<String>,
}

impl Sight<'_> {
    fn member(&self, id: &Id, server: &Server) -> Member {
        let address = server.address.map(|address| address.ip().to_string());
        let blank = |state| Member {
            id: id.as_str().to_owned(),
            address: address.clone(),
            state,
            permille: None,
            detail: None,
            measures: BTreeMap::new(),
        };
        let state = match &server.answer {
            Err(why) => return Member { detail: Some(why.clone()), ..blank(MemberState::Down) },
            Ok(_) if server.is_failed => {
                let detail = Some("other members do not reach it".to_owned());
                return Member { detail, ..blank(MemberState::Down) };
            }
            Ok(answer) => self.state(id, answer),
        };
        let (state, permille) = state;
        let moves = matches!(state, MemberState::Joining | MemberState::Draining);
        Member { permille, detail: self.trouble.clone().filter(|_| moves), ..blank(state) }
    }

    /// How far a member is by the slots that it has and those that are noted to move, and how much of that is done.
    fn state(&self, id: &Id, ServerAnswer { view, .. }: &ServerAnswer) -> (MemberState, Option<u32>) {
        let has = view.own().count();
        // Those that come from one that is drained come to a member that serves.
        let joins = view.importing.values().filter(|from| !self.draining.contains(from)).count();
        match (has, joins) {
            _ if self.draining.contains(id) => {
                let share = usize::from(SLOTS) / self.seen.holders().len().max(1);
                (MemberState::Draining, permille(share.saturating_sub(has), share))
            }
            (_, 1..) => (MemberState::Joining, permille(has, has + joins)),
            // Also what was drained: it may be ended, or take a share again.
            (0, 0) if view.importing.is_empty() => (MemberState::Waiting, None),
            (0, 0) => (MemberState::Joining, Some(0)),
            _ => (MemberState::Serving, None),
        }
    }
}

fn permille(part: usize, whole: usize) -> Option<u32> {
    (whole > 0).then(|| u32::try_from(part.min(whole) * 1_000 / whole).unwrap_or(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(run: &str, at: Instant, processor: &str) -> Option<RedisSample> {
        let text = format!(
            "# Server\r\nrun_id:{run}\r\nused_memory:1000\r\nused_cpu_sys:{processor}\r\nused_cpu_user:0.5\r\n\
             used_cpu_sys_children:9\r\ntotal_commands_processed:100\r\n"
        );
        RedisSample::parse(&text, at)
    }

    #[test]
    fn a_rate_needs_two_looks_at_one_run_of_a_server() {
        let now = Instant::now();
        let then = now.checked_sub(Duration::from_secs(2)).unwrap();
        let (before, after) = (sample("a", then, "1").unwrap(), sample("a", now, "2").unwrap());
        let measures = after.measures(Some(&before));
        assert!((measures[PROCESSOR].value - 50.0).abs() < 0.1, "{measures:?}");
        assert!(measures[OPERATIONS].value.abs() < 0.1, "{measures:?}");
        for other in [sample("b", then, "1"), sample("a", then, "3"), sample("a", now, "1"), None] {
            let measures = after.measures(other.as_ref());
            assert_eq!(measures.keys().collect::<Vec<_>>(), [MEMORY_BYTES], "{measures:?}");
        }
        for broken in ["NaN", "inf", "-1", "x"] {
            assert_eq!(sample("a", now, broken), None, "{broken}");
        }
    }
}
