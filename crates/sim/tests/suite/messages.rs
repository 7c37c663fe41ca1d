//! How many messages requests cost.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sim::cluster::{LAST_WRITE, World, redis_address};
use sim::executor::WallClock;
use sim::host::Host;
use sim::network::LinkStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::messages::RequestOptions;
use wire::resp::{Command, Reply, ReplyParser};

use crate::stage::{keys, play, put_all, setup};

/// With one message for each key there would be thousands: 300 keys, each on three replicas, and the answers.
#[test]
fn requests_for_many_keys_send_one_message_to_a_node_and_not_one_for_each_key() {
    play(setup(3), |world, client| async move {
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        let (keys, options) = (keys(300), RequestOptions::default());
        let frames = || world.wires.frames();
        let before = frames();
        let entries = keys.iter().map(|key| (key.clone(), key.clone()));
        for written in store.multi_put(entries, &options).await.expect("all nodes stand") {
            written.expect("all nodes stand");
        }
        let putting = frames() - before;
        let before = frames();
        for (found, key) in
            store.multi_get(keys.clone(), &options).await.expect("they stand").iter().zip(&keys)
        {
            let found = found.as_ref().expect("they stand");
            assert_eq!(found.value(), Some(key.clone()));
        }
        let getting = frames() - before;
        assert!(putting < 60 && getting < 60, "{putting} frames to put, {getting} to get");
    });
}

/// Reading and writing one key after the other cost eight frames a key, and a round trip each.
#[test]
fn a_del_of_many_keys_sends_one_message_to_a_node_and_counts_each_key_once() {
    let mut setup = setup(4);
    // The node that is asked is no replica of most keys.
    setup.nodes = 6;
    play(setup, |world, client| async move {
        let keys = keys(100);
        put_all(&world, &client, &keys, "v").await;
        let mut one = Connection::open(&world, 1, 102).await;
        let mut other = Connection::open(&world, 2, 103).await;
        let twice = [&keys[..], &[Bytes::from_static(b"never written")], &keys[..50]].concat();
        let before = world.wires.frames();
        assert_eq!(one.delete(&twice).await, 100);
        let frames = world.wires.frames() - before;
        assert!(frames < 150, "{frames} frames to delete");
        assert_eq!(other.delete(&twice).await, 0);
        for found in client
            .store(LAST_WRITE)
            .unwrap()
            .multi_get(keys.clone(), &RequestOptions::default())
            .await
            .unwrap()
        {
            assert_eq!(found.unwrap().value(), None);
        }
        for _ in 0..5 {
            put_all(&world, &client, &keys, "w").await;
            let (one, other) = futures_util::future::join(one.delete(&keys), other.delete(&keys)).await;
            assert_eq!(one + other, 100, "of two that delete a key one has deleted it");
        }
    });
}

/// A Redis client.
struct Connection {
    stream: LinkStream,
    parser: ReplyParser,
    input: BytesMut,
}

impl Connection {
    async fn open(world: &Arc<World>, node: u32, host: u32) -> Connection {
        let process = world.executor.process();
        let ports = world.ports(Host(host), process, Arc::new(WallClock::default()));
        let address = redis_address(model::NodeId(node));
        let link = ports.network.connect(&address).await.expect("nothing is in the way");
        let stream = LinkStream::new(link, ports.entropy.clone());
        Connection { stream, parser: ReplyParser::default(), input: BytesMut::new() }
    }

    async fn delete(&mut self, keys: &[Bytes]) -> i64 {
        let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(keys.iter().map(|key| &key[..])).collect();
        let mut bytes = BytesMut::new();
        Command::encode(&words, &mut bytes);
        self.stream.write_all(&bytes).await.expect("the node stands");
        loop {
            match self.parser.parse(&mut self.input).expect("the door speaks the protocol") {
                Some(Reply::Integer(count)) => return count,
                Some(other) => panic!("{other:?}"),
                None => assert!(self.stream.read_buf(&mut self.input).await.expect("the node stands") > 0),
            }
        }
    }
}
