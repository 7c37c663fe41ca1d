//! How many messages requests cost.

use sim::cluster::LAST_WRITE;
use wire::messages::RequestOptions;

use crate::stage::{keys, play, setup};

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
