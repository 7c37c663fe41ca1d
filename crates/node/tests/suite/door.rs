//! The Redis door, byte by byte.

use crate::support::Connection;

#[tokio::test]
async fn strings_and_their_options_answer_as_redis_does() {
    let mut redis = Connection::open().await;
    redis.ask("GET k", "$-1\r\n").await;
    redis.ask("SET k v", "+OK\r\n").await;
    redis.ask("GET k", "$1\r\nv\r\n").await;
    redis.ask("SET k w NX", "$-1\r\n").await;
    redis.ask("SET k w XX GET", "$1\r\nv\r\n").await;
    redis.ask("SET absent w XX", "$-1\r\n").await;
    redis.ask("STRLEN k", ":1\r\n").await;
    redis.ask("MSET a 1 b 2", "+OK\r\n").await;
    redis.ask("MGET a b c", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n").await;
    redis.ask("EXISTS a a c", ":2\r\n").await;
    redis.ask("DEL a b c", ":2\r\n").await;
    redis.ask("UNLINK k", ":1\r\n").await;
    redis.ask("GET k", "$-1\r\n").await;
}

#[tokio::test]
async fn expiry_is_set_kept_shown_and_removed() {
    let mut redis = Connection::open().await;
    redis.ask("TTL k", ":-2\r\n").await;
    redis.ask("SET k v EX 100", "+OK\r\n").await;
    redis.ask("TTL k", ":100\r\n").await;
    redis.ask("SET k w KEEPTTL", "+OK\r\n").await;
    redis.ask("TTL k", ":100\r\n").await;
    redis.ask("EXPIRE k 200 LT", ":0\r\n").await;
    redis.ask("EXPIRE k 200 GT", ":1\r\n").await;
    redis.ask("PERSIST k", ":1\r\n").await;
    redis.ask("PERSIST k", ":0\r\n").await;
    redis.ask("TTL k", ":-1\r\n").await;
    redis.ask("EXPIRE k 0", ":1\r\n").await;
    redis.ask("EXISTS k", ":0\r\n").await;
    redis.ask("SETEX k 0 v", "-ERR invalid expire time in 'setex' command\r\n").await;
}

#[tokio::test]
async fn a_pipeline_is_answered_in_order_also_on_one_key() {
    let mut redis = Connection::open().await;
    redis.send(b"SET k 1\r\nGET k\r\nSET k 2 XX\r\nGET k\r\nDEL k\r\nPING\r\nGET k\r\n").await;
    redis.expect("+OK\r\n$1\r\n1\r\n+OK\r\n$1\r\n2\r\n:1\r\n+PONG\r\n$-1\r\n").await;
}

#[tokio::test]
async fn what_redis_refuses_is_refused_in_its_words() {
    let mut redis = Connection::open().await;
    redis.ask("FOO a b", "-ERR unknown command 'FOO', with args beginning with: 'a' 'b' \r\n").await;
    redis.ask("GET", "-ERR wrong number of arguments for 'get' command\r\n").await;
    redis.ask("SET k v EX", "-ERR syntax error\r\n").await;
    redis.ask("SET k v EX ten", "-ERR value is not an integer or out of range\r\n").await;
    redis.ask("SELECT 1", "-ERR DB index is out of range\r\n").await;
    redis.ask("HELLO 4", "-NOPROTO unsupported protocol version\r\n").await;
    let long = "k".repeat(5000);
    let refusal = "-ERR key of 5000 bytes is over the limit of 4096 bytes\r\n";
    redis.ask(&format!("GET {long}"), refusal).await;
    redis.ask(&format!("SET {long} v"), refusal).await;
    redis.send(b"*1\r\nGET\r\n").await;
    redis.expect("-ERR Protocol error: expected '$', got 'G'\r\n").await;
    assert!(redis.is_closed().await);
}

#[tokio::test]
async fn answers_can_be_switched_off_and_skipped() {
    let mut redis = Connection::open().await;
    redis.send(b"CLIENT REPLY SKIP\r\nSET k v\r\nGET k\r\n").await;
    redis.expect("$1\r\nv\r\n").await;
    redis.send(b"CLIENT REPLY OFF\r\nSET k w\r\nPING\r\nCLIENT REPLY ON\r\nGET k\r\n").await;
    redis.expect("+OK\r\n$1\r\nw\r\n").await;
}

#[tokio::test]
async fn a_password_is_asked_for_and_checked() {
    let mut redis = Connection::open_with(|config| config.resp.password = Some("secret".to_owned())).await;
    redis.ask("GET k", "-NOAUTH Authentication required.\r\n").await;
    redis.ask("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled.\r\n").await;
    redis.ask("HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated").await;
    redis.lines(1).await;
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    redis.ask("HELLO 3 AUTH default wrong", wrong).await;
    redis.ask("HELLO 3 AUTH default", "-ERR syntax error\r\n").await;
    redis.ask("GET k", "-NOAUTH Authentication required.\r\n").await;
    redis.ask("AUTH secret", "+OK\r\n").await;
    redis.ask("GET k", "$-1\r\n").await;
}

#[tokio::test]
async fn a_command_names_ten_thousand_keys_and_not_one_more() {
    let mut redis = Connection::open().await;
    let keys = |count: usize| " k".repeat(count);
    redis.ask("SET k v", "+OK\r\n").await;
    redis.ask(&format!("EXISTS{}", keys(10_000)), ":10000\r\n").await;
    let refusal = "-ERR too-many-keys: 10001 keys in one request, the limit is 10000\r\n";
    for command in ["EXISTS", "MGET"] {
        redis.ask(&format!("{command}{}", keys(10_001)), refusal).await;
    }
    // With as many values this is the longest command that there is; what has more is read to its end and refused.
    redis.ask(&format!("MSET{}", keys(20_000)), "+OK\r\n").await;
    let array = |name: &str, count: usize| {
        let more = "$1\r\nk\r\n".repeat(count);
        format!("*{}\r\n${}\r\n{name}\r\n{more}", count + 1, name.len())
    };
    let refusal = |keys| format!("-ERR too-many-keys: {keys} keys in one request, the limit is 10000\r\n");
    for (name, count, keys) in
        [("MSET", 20_002, 10_001), ("MSET", 600_000, 300_000), ("MGET", 20_001, 20_001)]
    {
        redis.send(array(name, count).as_bytes()).await;
        redis.expect(&refusal(keys)).await;
        redis.ask("GET k", "$1\r\nk\r\n").await;
    }
    redis.send(array("DEL", 30_000).as_bytes()).await;
    redis.expect(&refusal(30_000)).await;
    redis.send(array("MSET", 20_001).as_bytes()).await;
    redis.expect("-ERR wrong number of arguments for 'mset' command\r\n").await;
    redis.ask("GET k", "$1\r\nk\r\n").await;
    redis.send(b"*1048577\r\n").await;
    redis.expect("-ERR Protocol error: invalid multibulk length\r\n").await;
    assert!(redis.is_closed().await);
}

#[tokio::test]
async fn connections_over_the_limit_are_refused_and_closed() {
    let (node, worker) = crate::support::lonely_node(|config| config.limits.connections_max = 1).await;
    let mut first = Connection::to(node.clone(), &worker);
    first.ask("PING", "+PONG\r\n").await;
    let mut second = Connection::to(node, &worker);
    second.expect("-ERR max number of clients reached\r\n").await;
    assert!(second.is_closed().await);
    first.ask("PING", "+PONG\r\n").await;
}

#[tokio::test]
async fn siblings_appear_in_the_store_that_keeps_them() {
    let mut redis = Connection::open().await;
    redis
        .ask(
            "TONTINE.STORE nowhere",
            "-ERR unknown-store: there is no store \"nowhere\"; the stores are: default, siblings\r\n",
        )
        .await;
    redis.ask("TONTINE.STORE siblings", "+OK\r\n").await;
    redis.send(b"CLIENT REPLY SKIP\r\nTONTINE.PUT k \"\" milk\r\nCLIENT REPLY SKIP\r\nTONTINE.PUT k \"\" eggs\r\n").await;
    redis.send(b"TONTINE.SIBLINGS k\r\n").await;
    redis.expect("*2\r\n").await;
}
