//! A web page in an operator's browser must neither read nor write a node that the browser can reach.

use super::{Reply, Web};
use crate::support::{Connection, lonely_node};

const HOST: &str = "host: 127.0.0.1:7601\r\n";

/// No answer says that a page may read it.
#[track_caller]
fn keeps_to_itself(reply: &Reply) {
    assert!(!reply.headers.keys().any(|name| name.starts_with("access-control-")), "{reply:?}");
    assert_eq!(reply.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn a_web_page_in_a_browser_neither_reads_nor_writes_a_node() {
    let (node, worker) = lonely_node(|config| config.doors.http.names = vec!["n1.example".to_owned()]).await;
    let mut web = Web::to(&worker);
    web.put("secret", "secret").await.is(204, "");
    for lines in [
        "host: evil.example\r\n".to_owned(),
        "host: evil.example:7601\r\n".to_owned(),
        format!("{HOST}origin: http://evil.example\r\n"),
        format!("{HOST}origin: null\r\n"),
        format!("{HOST}origin: http://127.0.0.1:3000\r\n"),
        format!("{HOST}sec-fetch-site: cross-site\r\n"),
        format!("{HOST}sec-fetch-site: same-site\r\n"),
    ] {
        for request in [
            "GET /v1/stores/default/keys/secret",
            "PUT /v1/stores/default/keys/secret",
            "DELETE /v1/stores/default/keys/secret",
            "POST /v1/stores/default/keys/secret",
            "OPTIONS /v1/stores/default/keys/secret",
            "GET /v1/stores/default/keys",
            "POST /v1/stores/default/batch",
            "GET /v1/cluster",
            "GET /v1/events",
            "POST /v1/orders",
            "GET /v1/openapi.json",
            "GET /metrics",
            "GET /health",
        ] {
            let reply = web.raw(request, &lines, "").await;
            reply.refuses(403, "foreign-origin");
            keeps_to_itself(&reply);
        }
    }
    // A form needs no leave of ours to be sent, so an old browser says nothing of its page.
    for kind in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"] {
        let lines = format!("content-type: {kind}\r\n");
        web.ask("POST /v1/stores/default/keys/secret", &lines, "a=b").await.refuses(403, "foreign-origin");
    }
    // What a page of this origin would have to ask for first is not given.
    let preflight = format!("{HOST}origin: http://127.0.0.1:7601\r\naccess-control-request-method: PUT\r\n");
    let reply = web.raw("OPTIONS /v1/stores/default/keys/secret", &preflight, "").await;
    reply.refuses(405, "unknown-request");
    keeps_to_itself(&reply);
    web.get("secret").await.is(200, "secret");
    let own = web.raw("GET /v1/stores/default/keys/secret", "host: N1.example:80\r\n", "").await;
    own.is(200, "secret");
    keeps_to_itself(&own);
    let mut redis = Connection::to(node, &worker);
    redis.ask("DBSIZE", ":1\r\n").await;
}

#[tokio::test]
async fn a_request_without_a_host_is_refused() {
    let (_node, mut web) = Web::open().await;
    web.raw("GET /health", "", "").await.refuses(400, "malformed");
    web.raw("GET /health", &format!("{HOST}{HOST}"), "").await.refuses(400, "malformed");
    // Load balancers ask for health so.
    web.send(b"GET /ready HTTP/1.0\r\n\r\n").await;
    web.reply(false).await.is(200, "ready\n");
}

#[tokio::test]
async fn a_cluster_with_a_password_asks_for_it_by_http_as_well() {
    let (_node, mut web) =
        Web::open_with(|config| config.doors.http.password = Some("open sesame".to_owned())).await;
    // "anybody:open sesame" and ":open sesame", and two that are not it.
    let basic = ["YW55Ym9keTpvcGVuIHNlc2FtZQ==", "Om9wZW4gc2VzYW1l"];
    for right in basic.map(|pair| format!("authorization: Basic {pair}\r\n")) {
        web.ask("PUT /v1/stores/default/keys/a", &right, "v").await.is(204, "");
    }
    let bearer = "authorization: bearer open sesame\r\n";
    web.ask("GET /v1/stores/default/keys/a", bearer, "").await.is(200, "v");
    assert_eq!(web.ask("GET /metrics", bearer, "").await.status, 200);
    for wrong in [
        "",
        "authorization: Bearer open sesam\r\n",
        "authorization: Bearer open sesame!\r\n",
        "authorization: Bearer \r\n",
        "authorization: Basic b3BlbiBzZXNhbWU=\r\n",
        "authorization: Basic nonsense\r\n",
        "authorization: Digest open sesame\r\n",
        "authorization: open sesame\r\n",
    ] {
        for request in ["GET /v1/stores/default/keys/a", "DELETE /v1/stores/default/keys/a", "GET /metrics"] {
            let reply = web.ask(request, wrong, "").await;
            reply.refuses(401, "unauthenticated");
            assert!(reply.headers["www-authenticate"].starts_with("Basic "), "{reply:?}");
        }
        web.ask("GET /health", wrong, "").await.is(200, "alive\n");
        web.ask("GET /ready", wrong, "").await.is(200, "ready\n");
    }
    web.ask("GET /v1/stores/default/keys/a", bearer, "").await.is(200, "v");
}
