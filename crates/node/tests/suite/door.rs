//! The Redis door, byte by byte.

use crate::support::{Connection, lonely_node};

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
async fn a_pipeline_is_answered_in_order_even_on_one_key() {
    let mut redis = Connection::open().await;
    redis.send(b"SET k 1\r\nGET k\r\nSET k 2 XX\r\nGET k\r\nDEL k\r\nPING\r\nGET k\r\n").await;
    redis.expect("+OK\r\n$1\r\n1\r\n+OK\r\n$1\r\n2\r\n:1\r\n+PONG\r\n$-1\r\n").await;
}

#[tokio::test]
async fn commands_that_redis_refuses_are_refused_in_its_words() {
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
    let mut redis =
        Connection::open_with(|config| config.doors.resp.password = Some("secret".to_owned())).await;
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
async fn a_command_may_name_ten_thousand_keys_and_not_one_more() {
    let mut redis = Connection::open().await;
    let keys = |count: usize| " k".repeat(count);
    redis.ask("SET k v", "+OK\r\n").await;
    redis.ask(&format!("EXISTS{}", keys(10_000)), ":10000\r\n").await;
    let refusal = "-ERR too-many-keys: 10001 keys in one request exceed the limit of 10000\r\n";
    for command in ["EXISTS", "MGET"] {
        redis.ask(&format!("{command}{}", keys(10_001)), refusal).await;
    }
    // With as many values this is the longest command that there is; what has more is read to its end and refused.
    redis.ask(&format!("MSET{}", keys(20_000)), "+OK\r\n").await;
    let array = |name: &str, count: usize| {
        let more = "$1\r\nk\r\n".repeat(count);
        format!("*{}\r\n${}\r\n{name}\r\n{more}", count + 1, name.len())
    };
    let refusal =
        |keys| format!("-ERR too-many-keys: {keys} keys in one request exceed the limit of 10000\r\n");
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
    let (node, worker) =
        crate::support::lonely_node(|config| config.requests.limits.connections_max = 1).await;
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
            "-ERR unknown-store: store \"nowhere\" does not exist; the stores are: default, siblings\r\n",
        )
        .await;
    redis.ask("TONTINE.STORE siblings", "+OK\r\n").await;
    redis.send(b"CLIENT REPLY SKIP\r\nTONTINE.PUT k \"\" milk\r\nCLIENT REPLY SKIP\r\nTONTINE.PUT k \"\" eggs\r\n").await;
    redis.send(b"TONTINE.SIBLINGS k\r\n").await;
    redis.expect("*2\r\n").await;
}

#[tokio::test]
async fn plain_commands_that_programs_use_answer_as_redis_does() {
    let mut redis = Connection::open().await;
    redis.ask("SETNX k 1", ":1\r\n").await;
    redis.ask("SETNX k 2", ":0\r\n").await;
    redis.ask("GETSET k 10", "$1\r\n1\r\n").await;
    redis.ask("OBJECT ENCODING k", "$3\r\nint\r\n").await;
    redis.ask("TYPE k", "+string\r\n").await;
    redis.ask("TYPE absent", "+none\r\n").await;
    redis.ask("TOUCH k k absent", ":2\r\n").await;
    redis.ask("GETRANGE k 0 0", "$1\r\n1\r\n").await;
    redis.ask("SUBSTR k -1 -1", "$1\r\n0\r\n").await;
    redis.ask("EXPIRETIME k", ":-1\r\n").await;
    redis.ask("EXPIREAT k 4102444800", ":1\r\n").await;
    redis.ask("EXPIRETIME k", ":4102444800\r\n").await;
    redis.ask("PEXPIRETIME k", ":4102444800000\r\n").await;
    redis.ask("GETEX k PERSIST", "$2\r\n10\r\n").await;
    redis.ask("PEXPIREAT k 4102444800001 NX", ":1\r\n").await;
    redis.ask("PEXPIRETIME k", ":4102444800001\r\n").await;
    redis.ask("GETEX k EX 100", "$2\r\n10\r\n").await;
    redis.ask("TTL k", ":100\r\n").await;
    redis.ask("GETEX k EXAT 1", "$2\r\n10\r\n").await;
    redis.ask("GETEX k", "$-1\r\n").await;
    redis.ask("PSETEX k 100000 v", "+OK\r\n").await;
    redis.ask("TTL k", ":100\r\n").await;
    redis.ask("GETDEL k", "$1\r\nv\r\n").await;
    redis.ask("GETDEL k", "$-1\r\n").await;
    redis.ask("PSETEX k 0 v", "-ERR invalid expire time in 'psetex' command\r\n").await;
    redis.ask("CONFIG GET maxmemory-p*", "*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n").await;
    redis.ask("CONFIG SET save x", "-ERR a client cannot change settings").await;
}

#[tokio::test]
async fn keys_are_counted_listed_and_walked() {
    let mut redis = Connection::open().await;
    redis.ask("DBSIZE", ":0\r\n").await;
    redis.ask("RANDOMKEY", "$-1\r\n").await;
    redis.ask("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n").await;
    redis.ask("INFO keyspace", "$12\r\n# Keyspace\r\n\r\n").await;
    redis.ask("MSET a 1 b 2 gone 3", "+OK\r\n").await;
    redis.ask("SET c 3 EX 1000", "+OK\r\n").await;
    redis.ask("DEL gone", ":1\r\n").await;
    redis.ask("DBSIZE", ":3\r\n").await;
    redis.ask("KEYS [c-x]", "*1\r\n$1\r\nc\r\n").await;
    redis.ask("SCAN 0 MATCH b COUNT 100", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nb\r\n").await;
    redis.ask("SCAN 0 TYPE list COUNT 100", "*2\r\n$1\r\n0\r\n*0\r\n").await;
    redis.ask("SCAN x", "-ERR invalid cursor\r\n").await;
    redis.ask("SCAN 0 COUNT 0", "-ERR syntax error\r\n").await;
    redis.ask("MSET a 1 c 3", "+OK\r\n").await;
    redis.ask("DEL b c", ":2\r\n").await;
    redis.ask("RANDOMKEY", "$1\r\na\r\n").await;
    redis.send(b"INFO keyspace\r\n").await;
    redis.expect("$44\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n\r\n").await;
}

/// Monitors ask INFO most of all when something is broken; a record that makes no sense made INFO an error.
#[tokio::test]
async fn info_answers_though_the_keys_cannot_be_counted() {
    let (node, worker) = lonely_node(|_| {}).await;
    let view = node.replica().view().get();
    let store = view.store("default").unwrap();
    let place = view.route(store, b"odd").place;
    let nonsense = &mut |_: Option<&bytes::Bytes>| storage::Change::Put(b"\xff\xff\xff".as_slice().into());
    store.engine().update(place.partition, place.token, b"odd", nonsense).unwrap();
    let mut redis = Connection::to(node.clone(), &worker);
    redis.ask("INFO keyspace", "$12\r\n# Keyspace\r\n\r\n").await;
    redis.send(b"INFO\r\n").await;
    let said = redis.lines(1).await;
    assert!(said[0].starts_with('$'), "{said:?}");
}

#[tokio::test]
async fn a_walk_in_a_pipeline_sees_what_was_sent_before_it_and_nothing_after() {
    let mut redis = Connection::open().await;
    redis.send(b"SET a 1\r\nKEYS *\r\nDEL a\r\nKEYS *\r\nSET b 1\r\nKEYS *\r\n").await;
    redis.expect("+OK\r\n*1\r\n$1\r\na\r\n:1\r\n*0\r\n+OK\r\n*1\r\n$1\r\nb\r\n").await;
}

#[tokio::test]
async fn commands_that_are_refused_on_purpose_say_why_and_what_to_use_instead() {
    let mut redis = Connection::open().await;
    for (command, part) in [
        ("INCR n", "Tontine has no counters"),
        ("hset h f v", "Tontine has no hashes"),
        ("FLUSHALL", "SCAN"),
        ("EVAL x 0", "Tontine runs no scripts"),
        ("SUBSCRIBE a", "Use a message broker"),
        ("CLUSTER SLOTS", "Any node answers for any key"),
    ] {
        let name = command.split(' ').next().unwrap().to_uppercase();
        redis.send(format!("{command}\r\n").as_bytes()).await;
        let said = redis.lines(1).await.remove(0);
        assert!(said.starts_with(&format!("-ERR unknown command '{name}': ")), "{said}");
        assert!(said.contains(part), "{said}");
    }
}

/// The page lists every command, and no command that is not there.
#[tokio::test]
async fn the_reference_page_lists_exactly_the_existing_commands() {
    let mut redis = Connection::open().await;
    redis.send(b"COMMAND COUNT\r\n").await;
    let count: usize = redis.lines(1).await[0].trim_start_matches(':').parse().unwrap();
    redis.send(b"COMMAND LIST\r\n").await;
    let mut known: Vec<String> = redis.lines(1 + 2 * count).await.into_iter().skip(2).step_by(2).collect();
    known.sort();

    let page = include_str!("../../../../docs/reference/resp.md");
    let tables =
        page.split("\n## ").filter(|part| part.starts_with("Commands") || part.starts_with("Our own"));
    let rows = tables.flat_map(str::lines).filter(|line| line.starts_with("| `"));
    let mut listed: Vec<String> = rows
        .flat_map(|row| {
            // Commands are in code in the first column, each before its arguments.
            let row = row.replace("\\|", "/");
            let column = row.split('|').nth(1).unwrap().to_owned();
            let codes = column.split('`').skip(1).step_by(2);
            codes.map(|code| code.split(' ').next().unwrap().to_lowercase()).collect::<Vec<_>>()
        })
        .collect();
    listed.sort();
    assert_eq!(listed, known, "docs/reference/resp.md and the commands that a node carries out");
}

/// go-redis refuses a line with a field that it does not know, and `store=` was one.
#[tokio::test]
async fn client_info_and_list_have_redis_fields_and_no_others() {
    let (node, worker) = crate::support::lonely_node(|_| {}).await;
    let mut first = Connection::to(node.clone(), &worker);
    let mut second = Connection::to(node, &worker);
    first.ask("PING", "+PONG\r\n").await;
    second.send(b"CLIENT SETNAME two\r\nSTRLEN k\r\n").await;
    second.expect("+OK\r\n:0\r\n").await;
    let rest = "age=0 idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 omem=0";
    let line = |id: u64, name: &str, command: &str| {
        format!(
            "id={id} addr=peer laddr=here name={name} {rest} cmd={command} user=default redir=-1 resp=2 lib-name= \
             lib-ver=\n"
        )
    };
    let bulk = |text: String| format!("${}\r\n{text}\r\n", text.len());
    let (one, two) = (line(1, "", "client"), line(2, "two", "strlen"));
    first.ask("CLIENT INFO", &bulk(one.clone())).await;
    for all in ["CLIENT LIST", "CLIENT LIST TYPE normal", "CLIENT LIST ID 1 2", "client list id 1 7 2 -1"] {
        first.ask(all, &bulk(format!("{one}{two}"))).await;
    }
    first.ask("CLIENT LIST ID 2", &bulk(two)).await;
    first.ask("CLIENT LIST TYPE pubsub", "$0\r\n\r\n").await;
    first.ask("CLIENT LIST TYPE odd", "-ERR Unknown client type 'odd'\r\n").await;
    first.ask("CLIENT LIST ID x", "-ERR Invalid client ID\r\n").await;
    for wrong in ["CLIENT LIST ID", "CLIENT LIST TYPE", "CLIENT LIST TYPE normal x", "CLIENT LIST x"] {
        first.ask(wrong, "-ERR syntax error\r\n").await;
    }
}

#[tokio::test]
async fn info_is_text_under_resp3_and_names_what_clients_look_for() {
    use std::time::Duration;
    let mut redis = Connection::open_with(|config| {
        config.doors.resp.cpu = Some(|| node::doors::resp::CpuTime {
            user: Duration::from_millis(1500),
            system: Duration::from_millis(20),
        });
    })
    .await;
    let cpu = "# CPU\r\nused_cpu_sys:0.020000\r\nused_cpu_user:1.500000\r\n";
    redis.ask("INFO cpu", &format!("${}\r\n{cpu}\r\n", cpu.len())).await;
    redis.ask("HELLO 3", "%7\r\n").await;
    redis.lines(25).await;
    redis.ask("INFO cpu", &format!("={}\r\ntxt:{cpu}\r\n", cpu.len() + 4)).await;
    redis.send(b"INFO server\r\n").await;
    assert!(redis.lines(6).await.iter().any(|line| line == "arch_bits:64"));
}

/// What Rust reads as a number and Redis does not.
#[tokio::test]
async fn numbers_are_as_strict_as_in_redis() {
    let mut redis = Connection::open().await;
    for number in ["010", "+10", "-0", "1e3", "9223372036854775808"] {
        for command in ["SET k v EX", "EXPIRE k", "SELECT"] {
            let refusal = "-ERR value is not an integer or out of range\r\n";
            redis.ask(&format!("{command} {number}"), refusal).await;
        }
        redis
            .ask(&format!("HELLO {number}"), "-ERR Protocol version is not an integer or out of range\r\n")
            .await;
    }
    redis.ask("GET k", "$-1\r\n").await;
}
