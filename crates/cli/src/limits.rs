//! How much a node takes in before it answers *overloaded*, as options: `docs/operating/limits.md` says what each means.

use std::time::Duration;

use node::hints::HINT_BYTES_MAX;
use protocol::admission::{
    AdmissionLimits, CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX, CONNECTIONS_MAX, NODE_BYTES_MAX,
    NODE_REQUESTS_MAX,
};
use protocol::pace::{FETCH_CEILING_DEFAULT, FETCH_CEILING_MIN};

use crate::durations;

/// Under which the options stand in the help.
const HEADING: &str = "Limits of one node";

/// How much a node takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct LimitSettings {
    /// Client connections at the same time, native, Redis and HTTP together. Further ones get an error and are closed.
    #[arg(
        long,
        help_heading = HEADING,
        default_value_t = CONNECTIONS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..),
        value_name = "COUNT"
    )]
    pub connections_max: u32,
    /// Requests in progress on the node, 1 to 16777215. Further ones fail with `overloaded`.
    #[arg(
        long,
        help_heading = HEADING,
        default_value_t = NODE_REQUESTS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..1 << 24),
        value_name = "COUNT"
    )]
    pub requests_max: u32,
    /// Bytes of requests in progress on the node, from 1 MiB. Requests that are still arriving may use half of them.
    #[arg(
        long,
        help_heading = HEADING,
        default_value_t = NODE_BYTES_MAX as u64,
        value_parser = clap::value_parser!(u64).range(1 << 20..1 << 40),
        value_name = "BYTES"
    )]
    pub request_bytes_max: u64,
    /// Requests in progress on one connection, 1 to 16777215.
    #[arg(
        long,
        help_heading = HEADING,
        default_value_t = CONNECTION_REQUESTS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..1 << 24),
        value_name = "COUNT"
    )]
    pub connection_requests_max: u32,
    /// Bytes of requests in progress on one connection, from 1 MiB.
    #[arg(
        long,
        help_heading = HEADING,
        default_value_t = CONNECTION_BYTES_MAX as u64,
        value_parser = clap::value_parser!(u64).range(1 << 20..1 << 40),
        value_name = "BYTES"
    )]
    pub connection_bytes_max: u64,
    /// How long a request that has begun to arrive may wait for its next 64 KiB or its end, 1s to 1d. A slower
    /// connection gets an error and is closed.
    #[arg(
        long,
        alias = "rest-seconds-max",
        help_heading = HEADING,
        default_value = "1m",
        value_parser = durations::within(Duration::from_secs(1), Duration::from_secs(86_400)),
        value_name = "DURATION"
    )]
    pub rest_time_max: Duration,
    /// Bytes of hints that the node holds for other nodes. Writes beyond that reach them through replica repair.
    #[arg(long, help_heading = HEADING, default_value_t = HINT_BYTES_MAX, value_name = "BYTES")]
    pub hint_bytes_max: u64,
    /// Bytes of artifacts a second that the node fetches at most, and gives other nodes at most, from 1 MiB; also with KiB,
    /// MiB, GiB or TiB. It takes less while requests are late.
    #[arg(
        long,
        help_heading = HEADING,
        default_value_t = FETCH_CEILING_DEFAULT,
        value_parser = parse_fetch_ceiling,
        value_name = "BYTES"
    )]
    pub fetch_ceiling: u64,
    /// Bytes of artifacts that the node holds at most, over all read-only stores, also with KiB, MiB, GiB or TiB. Without it
    /// they take what the disk has room for. What is there already stays.
    #[arg(long, help_heading = HEADING, value_parser = parse_bytes, value_name = "BYTES")]
    pub artifact_bytes_max: Option<u64>,
}

/// Bytes a second, within the limits of [`Limits::fetch_ceiling`].
fn parse_fetch_ceiling(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if (FETCH_CEILING_MIN..1 << 40).contains(&bytes) {
        return Ok(bytes);
    }
    Err("not from 1MiB to below 1TiB".to_owned())
}

/// A number of bytes, or of KiB, MiB, GiB or TiB.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1_u64 << 40)];
    let unit = units.into_iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{text:?} is no number of bytes; use a whole number above 0, such as 500000000 or 20GiB")
    })
}

impl Default for LimitSettings {
    fn default() -> Self {
        let limits = AdmissionLimits::default();
        LimitSettings {
            connections_max: limits.connections_max as u32,
            requests_max: limits.node_requests_max as u32,
            request_bytes_max: limits.node_bytes_max as u64,
            connection_requests_max: limits.connection_requests_max as u32,
            connection_bytes_max: limits.connection_bytes_max as u64,
            rest_time_max: limits.rest_time_max,
            hint_bytes_max: HINT_BYTES_MAX,
            fetch_ceiling: FETCH_CEILING_DEFAULT,
            artifact_bytes_max: None,
        }
    }
}

impl LimitSettings {
    /// The limits of the node's front doors.
    pub(crate) fn admission(&self) -> AdmissionLimits {
        AdmissionLimits {
            connections_max: self.connections_max as usize,
            connection_requests_max: self.connection_requests_max as usize,
            connection_bytes_max: self.connection_bytes_max as usize,
            node_requests_max: self.requests_max as usize,
            node_bytes_max: self.request_bytes_max as usize,
            rest_time_max: self.rest_time_max,
            ..AdmissionLimits::default()
        }
    }

    /// Those that are not the defaults, as arguments of another `tontine`.
    pub(crate) fn as_arguments(&self) -> Vec<String> {
        let pairs = |limits: &LimitSettings| {
            [
                ("connections-max", limits.connections_max.to_string()),
                ("requests-max", limits.requests_max.to_string()),
                ("request-bytes-max", limits.request_bytes_max.to_string()),
                ("connection-requests-max", limits.connection_requests_max.to_string()),
                ("connection-bytes-max", limits.connection_bytes_max.to_string()),
                ("rest-time-max", durations::shown(limits.rest_time_max)),
                ("hint-bytes-max", limits.hint_bytes_max.to_string()),
                ("fetch-ceiling", limits.fetch_ceiling.to_string()),
                ("artifact-bytes-max", limits.artifact_bytes_max.unwrap_or_default().to_string()),
            ]
        };
        let changed = pairs(self).into_iter().zip(pairs(&LimitSettings::default()));
        let changed = changed.filter(|(chosen, default)| chosen != default);
        changed.map(|((name, value), _)| format!("--{name}={value}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        limits: LimitSettings,
    }

    fn parse(words: &[String]) -> LimitSettings {
        let words = ["x".to_owned()].into_iter().chain(words.iter().cloned());
        Alone::try_parse_from(words).unwrap().limits
    }

    #[test]
    fn chosen_limits_reach_a_node_in_a_separate_process_and_the_others_stay_the_defaults() {
        assert_eq!(parse(&[]), LimitSettings::default());
        assert_eq!(parse(&[]).admission(), AdmissionLimits::default());
        assert_eq!(parse(&[]).as_arguments(), Vec::<String>::new());
        let words = [
            "--requests-max=7",
            "--request-bytes-max=1048576",
            "--rest-time-max=1m30s",
            "--hint-bytes-max=5",
            "--fetch-ceiling=2097152",
            "--artifact-bytes-max=3",
        ]
        .map(str::to_owned);
        let chosen = parse(&words);
        assert_eq!(chosen.as_arguments(), words);
        assert_eq!((chosen.admission().node_requests_max, chosen.admission().node_bytes_max), (7, 1 << 20));
        for refused in
            ["--requests-max=0", "--request-bytes-max=1000", "--requests-max=16777216", "--fetch-ceiling=1"]
        {
            assert!(Alone::try_parse_from(["x", refused]).is_err(), "{refused}");
        }
    }

    #[test]
    fn bytes_of_artifacts_may_have_a_unit() {
        let bytes = |text: &str| parse(&[format!("--artifact-bytes-max={text}")]).artifact_bytes_max;
        assert_eq!((bytes("77"), bytes("20GiB"), bytes("1TiB")), (Some(77), Some(20 << 30), Some(1 << 40)));
        for wrong in ["0", "0GiB", "-1", "GiB", "1.5GiB", "99999999999TiB", "20GB", "20 GiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
