//! The client library, and the coordinator that client and node share.
//!
//! - [`Client`] is what applications use: it keeps the ring, sends each get straight to the replicas and each put
//!   straight to one replica, and tells indeterminate outcomes from failures.
//! - [`coordinator`] drives one request to its quorum; the decisions are `protocol::quorum`'s.
//! - [`StoreWalk`] reads all records of a range of tokens, from R replicas side by side.
//! - [`peers`] carries calls over multiplexed links.
//!
//! ```no_run
//! use client::{Client, ClientOptions, PutOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let ports = runtime::Ports::os()?;
//! let client = Client::connect(&["127.0.0.1:7401"], ports, ClientOptions::default()).await?;
//! let carts = client.store("default")?;
//! carts.put("cart:7", "milk", PutOptions::default()).await?;
//! let found = carts.get("cart:7").await?;
//! assert_eq!(found.value().as_deref(), Some(&b"milk"[..]));
//! // A put with the context of a get replaces exactly what that get saw.
//! carts.put("cart:7", "milk, eggs", PutOptions::after(&found)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Architecture Invariant:** the client never stamps a version; only storage nodes do (D1).

pub mod coordinator;
pub mod peers;

mod bulk;
mod connect;
mod error;
mod feeds;
mod found;
mod ordering;
mod stamp;
mod store;
mod telling;
mod through_nodes;
mod walk;
mod write_order;

pub use bulk::{ScanAfter, ScanPage};
pub use connect::{Client, ClientOptions};
pub use error::ClientError;
pub use feeds::{RANGE_PAGE_MAX, RangePage};
pub use found::Found;
pub use ordering::{ANSWER_TIME_MAX, Ordered, PlanQuery};
pub use protocol::report;
pub use store::{DeleteOptions, Merge, PutOptions, StoreHandle};
pub use walk::{StoreWalk, WalkError, WalkOptions};
