//! HTTP requests on the Redis address.
//!
//! Browsers and proxies can be made to send them (request smuggling, DNS rebinding), with commands in their bodies:
//! `curl --http0.9 -X FOO --data-binary $'SET smug 1\r\n'` stored `smug`.

use crate::support::{Connection, lonely_node};

const NOT_HTTP: &str = "-ERR Protocol error: this port speaks the Redis protocol, not HTTP\r\n";

#[tokio::test]
async fn an_http_request_to_the_redis_port_carries_out_nothing_whatever_its_method() {
    let (node, worker) = lonely_node(|_| {}).await;
    let headers = "User-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Length: 12\r\n\r\nSET smug 1\r\n";
    for first in [
        "FOO / HTTP/1.1",
        "SET /smug HTTP/1.1",
        "SET http://127.0.0.1/smug HTTP/1.1",
        "GET / HTTP/1.1",
        "PRI * HTTP/2.0",
        "CONNECT smug:1 HTTP/1.1",
    ] {
        let mut http = Connection::to(node.clone(), &worker);
        http.send(format!("{first}\r\nHost: 127.0.0.1:7501\r\n{headers}").as_bytes()).await;
        http.expect(NOT_HTTP).await;
        assert!(http.is_closed().await, "{first}");
    }
    let mut redis = Connection::to(node, &worker);
    redis.ask("EXISTS smug /smug http://127.0.0.1/smug", ":0\r\n").await;
}

#[tokio::test]
async fn post_and_host_end_a_connection_except_as_an_argument() {
    let (node, worker) = lonely_node(|_| {}).await;
    for said in ["POST", "post /x", "Host: 127.0.0.1", "hOsT:127.0.0.1", "*1\r\n$4\r\nPoSt"] {
        for before in ["FOO\r\n", "MULTI\r\n"] {
            let mut http = Connection::to(node.clone(), &worker);
            http.send(format!("{before}{said}\r\nSET smug 1\r\n").as_bytes()).await;
            let lines = http.lines(2).await;
            assert_eq!(format!("{}\r\n", lines[1]), NOT_HTTP, "{said}: it is told why");
            assert!(http.is_closed().await, "{said}");
        }
    }
    let mut redis = Connection::to(node.clone(), &worker);
    redis.ask("GET smug", "$-1\r\n").await;
    redis.ask("SET POST Host:", "+OK\r\n").await;
    redis.ask("GET POST", "$5\r\nHost:\r\n").await;
    redis.ask("hostess", "-ERR unknown command 'hostess', with args beginning with: \r\n").await;

    // What waits for its turn on such a connection is not carried out any more.
    let mut http = Connection::to(node, &worker);
    http.send(b"SET POST changed XX\r\nHost: 127.0.0.1\r\n").await;
    assert!(http.is_closed().await);
    redis.ask("GET POST", "$5\r\nHost:\r\n").await;
}

#[tokio::test]
async fn an_http_request_is_refused_before_authentication_too() {
    let mut http =
        Connection::open_with(|config| config.doors.resp.password = Some("secret".to_owned())).await;
    http.send(b"Host: 127.0.0.1\r\nAUTH secret\r\nSET smug 1\r\n").await;
    http.expect(NOT_HTTP).await;
    assert!(http.is_closed().await);
}
