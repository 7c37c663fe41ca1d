//! `/v1/openapi.json`: what can be asked, for programs that make clients and tests of it.
//!
//! Paths, rights, parameters and statuses come from the table of routes; `openapi_schemas.json` says how bodies look. A
//! test compares the whole with `docs/reference/openapi.json`.
//!
//! It tells nothing of the cluster, so it needs no right.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};

use super::parameters::{NUMBER_MAX, PARAMETERS};
use super::routes::{ANY, Right, Route, RouteTask, TABLE};

/// How bodies look, and what else many paths share.
const SCHEMAS: &str = include_str!("openapi_schemas.json");

/// The document, made once.
pub(super) static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

const JSON: &str = "application/json";
/// What `If-Match` takes.
const TAGS: &str = "^(\\*|\"[A-Za-z0-9_-]+\")$";
/// Statuses whose answers have nothing but an error, wherever they are answered with a body.
const FAILED: &[u16] = &[400, 401, 403, 405, 408, 409, 412, 413, 431, 503, 504];

fn document() -> Json {
    let mut components: Json = serde_json::from_str(SCHEMAS).unwrap_or_default();
    components["parameters"] = PARAMETERS
        .iter()
        .map(|parameter| {
            let schema: Json = serde_json::from_str(parameter.schema).unwrap_or_default();
            let told = json!({
                "name": parameter.name,
                "in": "query",
                "required": false,
                "description": parameter.meaning,
                "schema": schema,
            });
            (parameter.name.to_owned(), told)
        })
        .collect::<Map<_, _>>()
        .into();
    let failed = |status: u16| (status.to_string(), failed(status));
    components["responses"] = FAILED.iter().map(|&status| failed(status)).collect::<Map<_, _>>().into();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tontine",
            "version": "1",
            "summary": "Keys, reports and orders of a Tontine cluster, at any of its nodes.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths(),
        "components": components,
    })
}

fn paths() -> Json {
    let mut paths = Map::new();
    for route in TABLE {
        let path = paths.entry(route.path).or_insert_with(|| {
            let names = names(route.path).map(path_parameter).collect::<Vec<_>>();
            if names.is_empty() { json!({}) } else { json!({ "parameters": names }) }
        });
        path[route.method.to_ascii_lowercase()] = operation(route);
        if route.method == "GET" {
            path["head"] = head(route);
        }
    }
    paths.into()
}

/// The names in braces of a path.
fn names(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn path_parameter(name: &str) -> Json {
    let (schema, meaning) = match name {
        "store" => (
            json!({ "type": "string", "pattern": "^[a-z][a-z0-9_-]{0,63}$", "examples": ["default"] }),
            "The name of a store.",
        ),
        "key" => (
            json!({ "type": "string", "minLength": 1, "maxLength": 4096 }),
            "The key, percent-encoded: any bytes, so a slash is %2F.",
        ),
        "plan" => (
            json!({ "type": "string", "pattern": "^([1-9][0-9]{0,15}|current)$" }),
            "The number of a plan, or current.",
        ),
        _ => (json!({ "type": "integer", "minimum": 1, "maximum": NUMBER_MAX }), "The number of an order."),
    };
    json!({ "name": name, "in": "path", "required": true, "description": meaning, "schema": schema })
}

fn operation(route: &Route) -> Json {
    let mut told = json!({
        "operationId": name(route.task),
        "summary": route.meaning,
        "x-tontine-right": route.right.name(),
        "security": security(route.right),
        "responses": responses(route, true),
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        told["parameters"] = parameters.into();
    }
    if let Some(body) = request_body(route.task) {
        told["requestBody"] = body;
    }
    told
}

/// What `HEAD` is told: the same without the body.
fn head(route: &Route) -> Json {
    let mut told = json!({
        "operationId": format!("{}Head", name(route.task)),
        "summary": format!("The head of the answer: {}", route.meaning),
        "x-tontine-right": route.right.name(),
        "security": security(route.right),
        "responses": responses(route, false),
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        told["parameters"] = parameters.into();
    }
    told
}

/// The name of an operation: that of its task, with a small letter in front.
fn name(task: RouteTask) -> String {
    let name = format!("{task:?}");
    name[..1].to_ascii_lowercase() + &name[1..]
}

fn security(right: Right) -> Json {
    match right {
        Right::Nothing => json!([]),
        // An open cluster without a password asks for none.
        _ => json!([{ "bearer": [] }, { "basic": [] }, {}]),
    }
}

fn parameters(route: &Route) -> Vec<Json> {
    let reference = |name: &str| json!({ "$ref": format!("#/components/parameters/{name}") });
    let mut told: Vec<Json> = route.parameters.iter().map(|name| reference(name)).collect();
    let header = |name: &str, pattern: &str, meaning: &str| {
        let schema = json!({ "type": "string", "pattern": pattern });
        json!({ "name": name, "in": "header", "description": meaning, "schema": schema })
    };
    match route.task {
        RouteTask::Put | RouteTask::Delete => {
            told.push(header(
                "If-Match",
                TAGS,
                "An ETag as it was answered: what the writer has seen. Or *.",
            ));
            told.push(header("If-None-Match", "^\\*$", "*: only if the key is not there."));
        }
        RouteTask::Events => told.push(header(
            "Last-Event-ID",
            "^[0-9]+-[0-9]+$",
            "Of events as they happen: the last id that was read.",
        )),
        _ => {}
    }
    told
}

fn request_body(task: RouteTask) -> Option<Json> {
    let schema = |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
    let of = |content: Json, required| Some(json!({ "required": required, "content": content }));
    match task {
        RouteTask::Put => of(
            json!({
                "application/octet-stream": { "schema": { "type": "string", "format": "binary" } },
                "application/vnd.tontine.versions+json": schema("VersionedValue"),
            }),
            false,
        ),
        RouteTask::Delete => {
            of(json!({ "application/vnd.tontine.versions+json": schema("VersionedDelete") }), false)
        }
        RouteTask::Batch => of(json!({ (JSON): schema("Batch") }), true),
        RouteTask::RepairOrder => of(json!({ (JSON): schema("RepairOrder") }), true),
        RouteTask::OrderGive => of(json!({ (JSON): schema("Order") }), true),
        _ => None,
    }
}

/// The answers of a route: those of its line, and those of any.
fn responses(route: &Route, has_body: bool) -> Json {
    let statuses = route.answers.iter().chain(ANY);
    let told = statuses.map(|&status| {
        let content = content(route.task, status).filter(|_| has_body);
        if content == Some(json_of("Failed")) {
            return (status.to_string(), json!({ "$ref": format!("#/components/responses/{status}") }));
        }
        let mut told = json!({ "description": meaning(status) });
        if let Some(content) = content {
            told["content"] = content;
        }
        if matches!(route.task, RouteTask::Get | RouteTask::Put | RouteTask::Delete)
            && matches!(status, 200 | 204 | 300 | 404)
        {
            told["headers"] = json!({
                "ETag": { "$ref": "#/components/headers/ETag" },
                "Tontine-Sloppy": { "$ref": "#/components/headers/Tontine-Sloppy" },
            });
        }
        (status.to_string(), told)
    });
    told.collect::<Map<_, _>>().into()
}

/// An answer that has nothing but an error.
fn failed(status: u16) -> Json {
    json!({ "description": meaning(status), "content": json_of("Failed") })
}

fn json_of(schema: &str) -> Json {
    json!({ (JSON): { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

/// What a status says, as the reference does.
fn meaning(status: u16) -> &'static str {
    match status {
        200 => "Done.",
        202 => "The order is given, and has no answer yet.",
        204 => "Done, with nothing to say.",
        300 => "The key has several values.",
        400 => "Not done: the request makes no sense, or there is no such store.",
        401 => "Not done: the secret or password is missing or wrong.",
        403 => "Not done: a web page may have sent it, or the user has no right to it.",
        404 => "R replicas say that the key is not there.",
        405 => "Not done: the path, or a read-only store, does not take this method.",
        408 => "Not done: the request came too slowly.",
        409 => {
            "Not done: a newer version has replaced what it was based on, there are too many siblings, or the order was refused."
        }
        412 => "Not done: the condition does not hold.",
        413 => "Not done: it is too long.",
        431 => "Not done: the head is too long, or has too many lines.",
        503 => "Not done: unavailable, overloaded or stopping. Try again, or at another node.",
        504 => "Unknown: it may have happened, or may still.",
        _ => "Not in the table.",
    }
}

fn content(task: RouteTask, status: u16) -> Option<Json> {
    let schema = |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
    let of = |name: &str| Some(json_of(name));
    let text = |kind: &str| Some(json!({ (kind): { "schema": { "type": "string" } } }));
    match (task, status) {
        (_, 204) => None,
        (RouteTask::OrderGive | RouteTask::OrderAnswer, 200 | 202 | 409) => of("OrderTold"),
        (RouteTask::Get, 404) => of("Absent"),
        (_, 400..) => of("Failed"),
        (RouteTask::Get, 300) => of("Siblings"),
        (RouteTask::Get, _) => Some(
            json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } }),
        ),
        (RouteTask::Put | RouteTask::Delete, _) => of("Written"),
        (RouteTask::Page, _) => text("application/x-ndjson"),
        (RouteTask::Batch, _) => of("BatchResults"),
        (RouteTask::Cluster, _) => of("Cluster"),
        (RouteTask::Events, _) => Some(json!({
            (JSON): schema("EventPage"),
            "text/event-stream": { "schema": { "type": "string" } },
        })),
        (RouteTask::Plans | RouteTask::Plan, _) => of("PlanPage"),
        (RouteTask::Office, _) => of("Office"),
        (RouteTask::OpenApi, _) => of("Document"),
        (RouteTask::Metrics, _) => text("text/plain; version=0.0.4; charset=utf-8"),
        (RouteTask::Health | RouteTask::Ready, _) => text("text/plain; charset=utf-8"),
        _ => of("Report"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::order::Order;

    use super::*;

    /// Each `$ref` of a document.
    fn references(told: &Json, found: &mut BTreeSet<String>) {
        match told {
            Json::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Json::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Json::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_is_the_one_in_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
        let made = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let golden = std::fs::read_to_string(path).expect("docs/reference/openapi.json exists");
        assert!(made == golden, "run this test with UPDATE_EXPECT=1, and look at what has changed");
    }

    #[test]
    fn every_reference_resolves_and_every_schema_is_used() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        for kind in ["schemas", "parameters", "headers", "responses"] {
            for name in document["components"][kind].as_object().unwrap().keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(found.contains(&reference), "nobody needs {reference}");
            }
        }
    }

    #[test]
    fn each_status_has_a_meaning_and_each_operation_has_a_unique_name() {
        let mut names = BTreeSet::new();
        for route in TABLE {
            assert!(names.insert(name(route.task)), "{:?} is there twice", route.task);
            for &status in route.answers.iter().chain(ANY) {
                assert_ne!(meaning(status), meaning(0), "{status}");
                assert!(status == 204 || content(route.task, status).is_some(), "{status}");
            }
        }
    }

    /// serde names all verbs where it is given none of them.
    #[test]
    fn all_verbs_of_orders_are_documented() {
        let error = serde_json::from_str::<Order>(r#"{"verb":"?"}"#).unwrap_err().to_string();
        let known: BTreeSet<&str> = error.split('`').skip(3).step_by(2).collect();
        let document = document();
        let told = document.pointer("/components/schemas/Order/properties/verb/enum").unwrap();
        let told: BTreeSet<&str> = told.as_array().unwrap().iter().filter_map(Json::as_str).collect();
        assert_eq!(told, known);
    }
}
