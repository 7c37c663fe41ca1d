//! The other ends of a node's links: what comes is shown to a script, at once, and answered as it says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use model::{Generation, NodeId};
use parking_lot::Mutex;
use runtime::{BoxFuture, Link, LinkReceiver, LinkSender, Listener, Network, NetworkError, Tasks};
use tokio::sync::mpsc;
use wire::error::ErrorCode;
use wire::messages::{
    Failure, Pong, Request, Response, VERSION_MAX, Welcome, decode_request, encode_response,
};

use super::Stage;

/// What a script does with a request.
pub(crate) enum Answer {
    /// Answers.
    Now(Response),
    /// Answers when this is done.
    Later(BoxFuture<'static, Response>),
    /// Says nothing.
    Silence,
}

impl<T: Into<Response>> From<T> for Answer {
    fn from(response: T) -> Answer {
        Answer::Now(response.into())
    }
}

/// Refuses with this code.
pub(crate) fn failing(code: ErrorCode) -> Answer {
    Answer::Now(Response::Failure(Failure::new(code, "as the script says")))
}

type Script = Arc<dyn Fn(Request) -> Answer + Send + Sync>;

/// All wires of a test; clones are the same.
#[derive(Clone)]
pub(crate) struct Wires {
    stage: Stage,
    scripts: Arc<Mutex<BTreeMap<String, (NodeId, Script)>>>,
}

impl Wires {
    /// Nobody answers so far.
    pub(crate) fn new(stage: &Stage) -> Wires {
        Wires { stage: stage.clone(), scripts: Arc::default() }
    }

    /// Where a node is reached.
    pub(crate) fn address(node: NodeId) -> String {
        format!("node-{}:1", node.0)
    }

    /// The node answers like this from now on, also over links that are up. Pings are answered by themselves.
    pub(crate) fn script(&self, node: NodeId, script: impl Fn(Request) -> Answer + Send + Sync + 'static) {
        self.scripts.lock().insert(Wires::address(node), (node, Arc::new(script)));
    }

    fn answer(&self, address: &str, request: Request) -> Answer {
        let Some((node, script)) = self.scripts.lock().get(address).cloned() else { return Answer::Silence };
        match request {
            Request::Hello(_) => Answer::Now(Response::Welcome(Welcome {
                version: VERSION_MAX,
                cluster: "test".to_owned(),
                node,
                generation: Generation(1),
                key_bytes_max: 1 << 16,
                frame_bytes_max: 1 << 24,
            })),
            Request::Ping(_) => Pong {}.into(),
            other => script(other),
        }
    }
}

struct Wire {
    wires: Wires,
    address: String,
    answers: mpsc::UnboundedSender<Bytes>,
}

fn encoded(id: u64, response: &Response) -> Bytes {
    let mut frame = BytesMut::new();
    encode_response(id, response, &mut frame);
    frame.freeze()
}

impl LinkSender for Wire {
    fn send(&self, encode: &mut dyn FnMut(&mut BytesMut)) -> Result<(), NetworkError> {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        let (id, request) = decode_request(frame.freeze()).expect("a node sends what can be read");
        let (wires, address, answers) = (self.wires.clone(), self.address.clone(), self.answers.clone());
        // Not before the caller has gone on: it may hold what the answer needs.
        self.wires.stage.spawn(Box::pin(async move {
            let response = match wires.answer(&address, request) {
                Answer::Now(response) => response,
                Answer::Later(response) => response.await,
                Answer::Silence => return,
            };
            // Whoever asked may have gone.
            let _ = answers.send(encoded(id, &response));
        }));
        Ok(())
    }

    fn close(&self) {}

    fn queued_bytes(&self) -> usize {
        0
    }
}

struct Answers(mpsc::UnboundedReceiver<Bytes>);

impl LinkReceiver for Answers {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NetworkError>> {
        self.0.poll_recv(context).map(Ok)
    }
}

impl Network for Wires {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Link, NetworkError>> {
        let (answers, receiver) = mpsc::unbounded_channel();
        let wire = Wire { wires: self.clone(), address: address.to_owned(), answers };
        let link = Link {
            sender: Arc::new(wire),
            receiver: Box::new(Answers(receiver)),
            peer: address.to_owned(),
            proof: runtime::Proof::None,
        };
        Box::pin(std::future::ready(Ok(link)))
    }

    fn listen(&self, address: &str) -> BoxFuture<'static, Result<Box<dyn Listener>, NetworkError>> {
        let error = NetworkError::AddressInUse { address: address.to_owned() };
        Box::pin(std::future::ready(Err(error)))
    }
}
