//! What a connection may do after a refused `MULTI`: nothing.
//!
//! `MULTI` was refused and the commands after it were carried out, one by one: `MULTI`, `SET x 1`, `DISCARD` left x = 1.

use crate::support::{Connection, lonely_node};

const MULTI_REFUSED: &str = "-ERR unknown command 'MULTI': Tontine has no transactions, and carries out nothing until \
                             EXEC or DISCARD. Send the commands without MULTI and EXEC, in redis-py with \
                             pipeline(transaction=False)\r\n";
const NOT_CARRIED_OUT: &str = "-ERR not carried out: Tontine has no transactions, so MULTI was refused on this \
                               connection. Send EXEC or DISCARD before other commands\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors. Tontine has no transactions: none \
                       of these commands was carried out\r\n";

#[tokio::test]
async fn nothing_is_carried_out_between_a_refused_multi_and_its_end() {
    let mut redis = Connection::open().await;
    for (end, answer) in [("EXEC", ABORTED), ("DISCARD", "+OK\r\n"), ("exec", ABORTED)] {
        redis.ask("multi", MULTI_REFUSED).await;
        for command in ["SET x 1", "MSET x 1 y 2", "GET x", "SET x", "NOSUCH", "PING", "SELECT 0", "UNWATCH"]
        {
            redis.ask(command, NOT_CARRIED_OUT).await;
        }
        redis.ask("MULTI", "-ERR MULTI calls can not be nested\r\n").await;
        redis.ask("WATCH x", "-ERR WATCH inside MULTI is not allowed\r\n").await;
        redis.ask("EXEC now", "-ERR wrong number of arguments for 'exec' command\r\n").await;
        redis.ask("SET x 1", NOT_CARRIED_OUT).await;
        redis.ask(end, answer).await;
        redis.ask("EXISTS x y", ":0\r\n").await;
    }
    redis.ask("EXEC", "-ERR EXEC without MULTI\r\n").await;
    redis.ask("DISCARD", "-ERR DISCARD without MULTI\r\n").await;
    redis.ask("MULTI now", "-ERR wrong number of arguments for 'multi' command\r\n").await;
    redis.ask("SET x 1", "+OK\r\n").await;
}

#[tokio::test]
async fn a_transaction_in_a_pipeline_is_refused_and_the_commands_around_it_are_carried_out() {
    let mut redis = Connection::open().await;
    redis
        .send(
            b"SET a 1 XX\r\nSET a 1\r\nMULTI\r\nSET a 2\r\nDEL a\r\nSET b 2 NX\r\nEXEC\r\nGET a\r\nGET b\r\n",
        )
        .await;
    redis.expect("$-1\r\n+OK\r\n").await;
    for answer in [MULTI_REFUSED, NOT_CARRIED_OUT, NOT_CARRIED_OUT, NOT_CARRIED_OUT, ABORTED] {
        redis.expect(answer).await;
    }
    redis.expect("$1\r\n1\r\n$-1\r\n").await;
}

#[tokio::test]
async fn a_transaction_ends_with_reset_with_quit_and_with_its_connection() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut redis = Connection::to(node.clone(), &worker);
    redis.ask("MULTI", MULTI_REFUSED).await;
    redis.ask("RESET", "+RESET\r\n").await;
    redis.ask("SET x 1", "+OK\r\n").await;
    redis.ask("MULTI", MULTI_REFUSED).await;
    redis.ask("SET x 2", NOT_CARRIED_OUT).await;
    redis.ask("QUIT", "+OK\r\n").await;
    assert!(redis.is_closed().await);
    let mut next = Connection::to(node, &worker);
    next.ask("GET x", "$1\r\n1\r\n").await;
}

#[tokio::test]
async fn a_client_with_answers_switched_off_has_no_transaction_either() {
    let mut redis = Connection::open().await;
    redis
        .send(b"CLIENT REPLY OFF\r\nMULTI\r\nSET x 1\r\nCLIENT REPLY ON\r\nEXEC\r\nCLIENT REPLY ON\r\n")
        .await;
    redis.expect("+OK\r\n").await;
    redis.ask("GET x", "$-1\r\n").await;
}

#[tokio::test]
async fn multi_before_authentication_is_refused_and_begins_nothing() {
    let mut redis =
        Connection::open_with(|config| config.doors.resp.password = Some("secret".to_owned())).await;
    for command in ["MULTI", "SET x 1", "EXEC", "DISCARD"] {
        redis.ask(command, "-NOAUTH Authentication required.\r\n").await;
    }
    redis.ask("AUTH secret", "+OK\r\n").await;
    redis.ask("EXEC", "-ERR EXEC without MULTI\r\n").await;
    redis.ask("MULTI", MULTI_REFUSED).await;
    redis.ask("AUTH secret", NOT_CARRIED_OUT).await;
    redis.ask("SET x 1", NOT_CARRIED_OUT).await;
    redis.ask("EXEC", ABORTED).await;
    redis.ask("GET x", "$-1\r\n").await;
}
