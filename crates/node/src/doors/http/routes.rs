//! What can be asked: the one table of methods, paths, rights, parameters and answers.
//!
//! The router, the parameters that are taken and the statuses that may be answered come from it, and
//! `docs/reference/http.md` is compared with it.

use model::access;
use runtime::http::path::matched;
use runtime::http::{Method, StatusCode};
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::answer::HttpAnswer;

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// Nothing: whoever reaches the port may ask.
    Nothing,
    /// To be a user.
    AnyUser,
    /// To watch the node.
    Observe,
    /// To give orders, but for those about users, which ask for more.
    Operate,
    /// To read keys.
    Read,
    /// To write keys.
    Write,
    /// To walk over a store.
    Scan,
    /// To read those keys that are read, and to write those that are written: asked for key by key.
    EachKey,
}

impl Right {
    /// Which right of a user that is, where it is the same for all that the request asks.
    pub(super) fn asks(self) -> Option<access::Right> {
        match self {
            Right::Nothing | Right::AnyUser | Right::EachKey => None,
            Right::Observe => Some(access::Right::Observe),
            Right::Operate => Some(access::Right::Operate),
            Right::Read => Some(access::Right::Read),
            Right::Write => Some(access::Right::Write),
            Right::Scan => Some(access::Right::Scan),
        }
    }

    /// How the reference calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Right::Nothing => "none",
            Right::AnyUser => "any user",
            Right::Observe => "observe",
            Right::Operate => "operate",
            Right::Read => "read",
            Right::Write => "write",
            Right::Scan => "scan",
            Right::EachKey => "read, write",
        }
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteTask {
    Get,
    Put,
    Delete,
    Page,
    Batch,
    Cluster,
    Status,
    Nodes,
    Moves,
    Load,
    HotKeys,
    Repair,
    RepairOrder,
    Artifacts,
    Events,
    OrderGive,
    OrderAnswer,
    Plans,
    Plan,
    Office,
    OpenApi,
    Metrics,
    Health,
    Ready,
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) task: RouteTask,
    pub(super) method: &'static str,
    /// Method and path.
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) right: Right,
    pub(super) parameters: &'static [&'static str],
    /// Beside those of [`ANY`].
    pub(super) answers: &'static [u16],
    pub(super) meaning: &'static str,
}

macro_rules! routes {
    ($($task:ident $method:literal $path:literal $right:ident [$($parameter:literal)*] [$($answer:literal)*]
        $meaning:literal;)*) => {
        /// All of them.
        pub(super) const TABLE: &[Route] = &[$(Route {
            task: RouteTask::$task,
            method: $method,
            name: concat!($method, " ", $path),
            path: $path,
            right: Right::$right,
            parameters: &[$($parameter,)*],
            answers: &[$($answer,)*],
            meaning: $meaning,
        },)*];
    };
}

/// What any request may be answered, whatever it asks.
pub(super) const ANY: &[u16] = &[400, 401, 403, 405, 408, 431, 503];

// HEAD may be said wherever GET may.
routes! {
    Get "GET" "/v1/stores/{store}/keys/{key}" Read ["r" "timeout"] [200 300 404 504]
        "Reads a key. 200 is its value, 300 its siblings.";
    Put "PUT" "/v1/stores/{store}/keys/{key}" Write ["w" "timeout" "ttl"] [200 204 409 412 413 504]
        "Writes a key.";
    Delete "DELETE" "/v1/stores/{store}/keys/{key}" Write ["w" "timeout"] [200 204 409 412 413 504]
        "Deletes a key.";
    Page "GET" "/v1/stores/{store}/keys" Scan ["after" "prefix" "limit" "values"] [200 409 504]
        "Lists the keys of a store, a page at a time, as lines of JSON.";
    Batch "POST" "/v1/stores/{store}/batch" EachKey ["r" "w" "timeout"] [200 413 504]
        "Reads, writes and deletes many keys, each with its own outcome.";
    Cluster "GET" "/v1/cluster" AnyUser [] [200]
        "The cluster document: its nodes, its ring and its stores.";
    Status "GET" "/v1/status" Observe [] [200]
        "The node's report of its process, its disk and its stores.";
    Nodes "GET" "/v1/nodes" Observe [] [200]
        "Its report of what it believes about all nodes.";
    Moves "GET" "/v1/moves" Observe [] [200]
        "Its report of partitions that move.";
    Load "GET" "/v1/load" Observe [] [200]
        "Its report of the work that it has done.";
    HotKeys "GET" "/v1/load/keys" Observe [] [200]
        "Its report of the keys with most work lately.";
    Repair "GET" "/v1/repair" Observe ["store" "partition"] [200 504]
        "Its report of how it compares and verifies its records.";
    RepairOrder "POST" "/v1/repair" Operate [] [200 413 504]
        "Starts or stops comparing there, or verifies all records; answers its report.";
    Artifacts "GET" "/v1/artifacts" Observe [] [200]
        "Its report of the artifacts of read-only stores.";
    Events "GET" "/v1/events" Observe ["run" "after" "limit" "wait"] [200]
        "What happened to the node: a page, or each event as it happens.";
    OrderGive "POST" "/v1/orders" Operate ["wait"] [200 202 409 413 504]
        "Gives an order to the headmaster. 202 is one that has no answer yet; orders about users need admin.";
    OrderAnswer "GET" "/v1/orders/{number}" Observe ["wait"] [200 504]
        "What came of an order.";
    Plans "GET" "/v1/plans" Observe [] [200 504]
        "All plans in short, and the one that is under way or the newest.";
    Plan "GET" "/v1/plans/{plan}" Observe ["since" "wait"] [200 504]
        "A plan, with its state; current is the one that is under way or the newest.";
    Office "GET" "/v1/office" Observe [] [200 504]
        "Who is headmaster, and what waits for it.";
    OpenApi "GET" "/v1/openapi.json" Nothing [] [200]
        "This table, with the forms of all bodies, as OpenAPI 3.1.";
    Metrics "GET" "/metrics" Observe [] [200]
        "The node's numbers, in Prometheus's text form.";
    Health "GET" "/health" Nothing [] [200]
        "The process is alive.";
    Ready "GET" "/ready" Nothing [] [200]
        "The node serves; 503 with the reason while it starts, refills or stops. No other node is asked.";
}

impl Route {
    /// Whether this status is in its line.
    pub(super) fn may_answer(&self, status: StatusCode) -> bool {
        self.answers.contains(&status.as_u16()) || ANY.contains(&status.as_u16())
    }
}

/// A line, and what the path has for its names, not decoded.
pub(super) struct RouteFound<'a> {
    pub(super) route: &'static Route,
    pub(super) names: Vec<&'a str>,
}

/// The line of a request.
///
/// # Errors
/// The answer when there is none, for any or for this method.
pub(super) fn find<'a>(method: &Method, path: &'a str) -> Result<RouteFound<'a>, HttpAnswer> {
    let of_path = || TABLE.iter().filter_map(|route| Some((route, matched(route.path, path)?)));
    let wanted = if method == Method::HEAD { Method::GET } else { method.clone() };
    if let Some((route, names)) = of_path().find(|(route, _)| route.method == wanted.as_str()) {
        return Ok(RouteFound { route, names });
    }
    let methods: Vec<&str> = of_path().map(|(route, _)| route.method).collect();
    if methods.is_empty() {
        let detail = "there is no such path; a slash in a key is written %2F";
        return Err(HttpAnswer::failure(&Failure::new(ErrorCode::UnknownRequest, detail)));
    }
    let head = methods.contains(&"GET").then_some("HEAD");
    let methods = methods.into_iter().chain(head).collect::<Vec<_>>().join(", ");
    let failure = Failure::new(ErrorCode::UnknownRequest, format!("the path takes {methods} only"));
    Err(HttpAnswer::failure_as(StatusCode::METHOD_NOT_ALLOWED, &failure).allowing(&methods))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_has_this_table() {
        let mut table =
            String::from("| method | path | right | parameters | answers | |\n|---|---|---|---|---|---|\n");
        for route in TABLE {
            let right = route.right.name();
            let parameters: Vec<String> = route.parameters.iter().map(|name| format!("`{name}`")).collect();
            let parameters = if parameters.is_empty() { "-".to_owned() } else { parameters.join(", ") };
            let answers: Vec<String> = route.answers.iter().map(u16::to_string).collect();
            table.push_str(&format!(
                "| {} | `{}` | {right} | {parameters} | {} | {} |\n",
                route.method,
                route.path,
                answers.join(", "),
                route.meaning
            ));
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/http.md");
        let document = std::fs::read_to_string(path).expect("docs/reference/http.md exists");
        assert!(document.contains(&table), "docs/reference/http.md must hold this table:\n{table}");
        for status in ANY {
            assert!(
                document.contains(&format!("\n| {status} |")),
                "docs/reference/http.md says nothing of {status}"
            );
        }
    }

    #[test]
    fn a_request_finds_its_route_and_head_finds_that_of_get() {
        let found =
            |method: &str, path| find(&method.parse().unwrap(), path).map(|found| found.route.task).ok();
        assert_eq!(found("GET", "/v1/stores/a/keys/b"), Some(RouteTask::Get));
        assert_eq!(found("HEAD", "/v1/stores/a/keys/b"), Some(RouteTask::Get));
        assert_eq!(found("HEAD", "/ready"), Some(RouteTask::Ready));
        for (method, path, status) in [
            ("GET", "/", 400),
            ("GET", "/v1/stores/a/keys/b/c", 400),
            ("POST", "/v1/stores/a/keys/b", 405),
            ("OPTIONS", "/health", 405),
            ("get", "/health", 405),
            ("HEADS", "/health", 405),
        ] {
            let refused = find(&method.parse().unwrap(), path).err().unwrap();
            assert_eq!(refused.status().as_u16(), status, "{method} {path}");
        }
    }
}
