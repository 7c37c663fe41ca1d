//! What a person can do about a code that a node answered with.

use wire::ErrorCode;

/// What to do next, in one sentence.
pub(crate) fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnknownStore => "Check the name against `tontine status`.",
        ErrorCode::KeyEmpty => "Send a key of at least one byte.",
        ErrorCode::KeyTooLong => "Shorten the key, for example by hashing its long part.",
        ErrorCode::ValueTooLarge => "Split the value over several keys.",
        ErrorCode::TooManyKeys => "Split the request into several.",
        ErrorCode::RecordTooLong => {
            "Store a smaller value, split over several keys; if the key has siblings, get, merge and put them first."
        }
        ErrorCode::ReadOnly => "Build an artifact and put it live with `tontine artifact push`.",
        ErrorCode::ArtifactRefused => {
            "Read the reason; `tontine artifact list` shows the artifacts that there are."
        }
        ErrorCode::TooManySiblings => {
            "Get the key, merge its siblings and put the result with the context that the get returned."
        }
        ErrorCode::Obsolete => "Get the key again and repeat the change on what it returns.",
        ErrorCode::ConditionFailed => "Get the key to see its state, then decide.",
        ErrorCode::StaleGeneration => {
            "Adopt the cluster document in the answer and send the request again at once."
        }
        ErrorCode::InsufficientReplicas => {
            "Retry after a pause; find the nodes that are down with `tontine doctor`."
        }
        ErrorCode::Indeterminate => "Get the key to learn the outcome, or put again with the same context.",
        ErrorCode::Overloaded => {
            "Retry with exponential backoff; if it persists, send fewer requests at once."
        }
        ErrorCode::ShuttingDown => "Send the request to another node.",
        ErrorCode::Isolated => {
            "Send the request to another node; if all refuse it, find the nodes that are down with `tontine node list`."
        }
        ErrorCode::CoordinationUnavailable => {
            "Retry later; find out what the service is doing with `tontine coordination show`."
        }
        ErrorCode::CoordinationUnconfirmed => {
            "Look at the document with `tontine coordination show /config/cluster`, then repeat the command if need be."
        }
        ErrorCode::Behind => {
            "Retry: other replicas answer; if it recurs, see with `tontine node list` whether the node reaches the others."
        }
        ErrorCode::NotReplica => {
            "Retry with the newest cluster document; if it recurs, report this bug with the document's generation."
        }
        ErrorCode::NoHeadmaster => {
            "Start one: `tontine serve` does beside its node, or run `tontine headmaster`."
        }
        ErrorCode::DiskFull => "Free space on the disk of the node's data directory.",
        ErrorCode::StorageFailed => {
            "Look at the node's log, replace the disk if it is failing, and restart the node."
        }
        ErrorCode::Corrupt => "Retry: other replicas answer; if the error recurs, check the node's disk.",
        ErrorCode::Refilling => {
            "Retry: other replicas answer; see the progress with `tontine repair status`."
        }
        ErrorCode::ArtifactNotHere => {
            "Retry: other replicas answer; see with `tontine artifact list` how far the node is."
        }
        ErrorCode::Malformed => "Report this bug: client and node disagree about the protocol.",
        ErrorCode::UnknownRequest => "Use a client of the node's version, or upgrade the node.",
        ErrorCode::FrameTooLong => "Send fewer keys or smaller values in one request.",
        ErrorCode::UnsupportedVersion => "Upgrade the older of the two.",
        ErrorCode::WrongCluster => "Check the addresses and the cluster's name in the configuration.",
        ErrorCode::DuplicateNode => "Stop one of the two; an id belongs to one data directory.",
        ErrorCode::TooManyConnections => "Close idle connections or use a pool, then retry.",
        ErrorCode::Internal => "Report it with the node's log around this time.",
        other => of_others(other),
    }
}

/// The same of codes about who asks, and about keys that are not as the store wants them.
fn of_others(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::KeyUnfit => {
            "Look at the pattern with `tontine store list`; numbers have no leading zeros."
        }
        ErrorCode::Unauthenticated => {
            "Authenticate first with valid credentials: `--secret-file` and `--tls-authority` on the command line."
        }
        ErrorCode::ForeignOrigin => "Send it to an address of the node, or name the host with `--http-name`.",
        ErrorCode::Forbidden => "Ask an administrator for the right: `tontine user grant NAME RIGHT`.",
        _ => "Upgrade this program: it does not know the code.",
    }
}

#[cfg(test)]
mod tests {
    use wire::error::Outcome;

    use super::*;

    /// The reference's table as the code defines it: one row a code.
    fn table() -> String {
        let mut text = String::from(
            "| code | name | outcome | send again | what happened | what to do |\n|---|---|---|---|---|---|\n",
        );
        for code in ErrorCode::ALL {
            let outcome = match code.outcome() {
                Outcome::Failed => "failed",
                Outcome::Indeterminate => "indeterminate",
            };
            let again = if code.is_retryable() { "yes" } else { "no" };
            text += &format!(
                "| {} | `{}` | {outcome} | {again} | {} | {} |\n",
                code.number(),
                code.name(),
                code.description(),
                remedy(*code)
            );
        }
        text
    }

    #[test]
    fn the_reference_lists_exactly_the_codes_of_the_program() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
        let document = std::fs::read_to_string(path).expect("docs/reference/errors.md exists");
        assert!(document.contains(&table()), "docs/reference/errors.md must hold this table:\n{}", table());
        let is_code = |line: &&str| {
            line.strip_prefix("| ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let rows = document.lines().filter(is_code).count();
        assert_eq!(rows, ErrorCode::ALL.len(), "and no further row");
    }
}
