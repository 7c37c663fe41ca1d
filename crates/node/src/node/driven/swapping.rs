//! Swaps that an operator orders at a node, amid which others change the cluster document.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::readonly::Order;
use model::{Generation, NodeId};
use wire::error::ErrorCode;
use wire::messages::{ArtifactsDocument, ArtifactsOrder, Request, Response};

use super::Answer;
use super::keeping::{Built, Keeper, empty};
use crate::node::pushing;

/// What nodes said by the document of before tells nothing of what they own by the one that is there now.
#[test]
fn a_swap_that_was_overtaken_is_judged_anew_before_it_is_published_again() {
    let built = Built::new("words", 1);
    let keeper = Keeper::whole(vec![built.staged(&empty("words"))], &[&built]);
    let node = keeper.node.clone();
    let by_this: bytes::Bytes = keeper.told().to_string().into_bytes().into();
    let document = node.replica.view().get().cluster().as_ref().clone();
    let asked = Arc::new(AtomicUsize::new(0));
    for other in [NodeId(2), NodeId(3)] {
        let (told, asked, service) = (by_this.clone(), asked.clone(), keeper.home.service.clone());
        let newer = model::Cluster { generation: Generation(document.generation.0 + 1), ..document.clone() };
        keeper.home.wires.script(other, move |request| {
            let Request::ArtifactsGet(_) = request else { return Answer::Silence };
            let (told, is_first) = (told.clone(), asked.fetch_add(1, Ordering::Relaxed) == 0);
            let (service, newer) = (service.clone(), newer.clone());
            Answer::Later(Box::pin(async move {
                if is_first {
                    coordination::documents::publish_cluster(&service.open(), &newer).await.unwrap();
                }
                Response::ArtifactsDocument(ArtifactsDocument { json: told })
            }))
        });
    }
    let (store, number) = (built.manifest.store.clone(), built.number());
    let order = Order::Swap { store, number, replicas: None, first: false };
    let json = serde_json::to_vec(&order).unwrap().into();
    let request = ArtifactsOrder { json }.into();
    let answer = keeper.home.stage.run(pushing::answer(Arc::downgrade(&node), request));
    assert_eq!(
        answer.unwrap_err().code,
        ErrorCode::NotStaged,
        "by the newer document the others hold nothing"
    );
    assert!(asked.load(Ordering::Relaxed) >= 4);
}
