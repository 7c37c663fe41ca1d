//! The home of the tests in `tests/suite/driven`, for unit tests that start a node and look at what is private in it.
//!
//! It is compiled twice, from the same files: for the suite, and for these.
//!
//! Must never: hold a test, or anything that the suite has not.

#[path = "../tests/suite/driven/home.rs"]
pub(crate) mod home;
#[path = "../tests/suite/driven/keeper.rs"]
pub(crate) mod keeper;
#[path = "../tests/suite/driven/stage.rs"]
mod stage;
#[path = "../tests/suite/driven/wires.rs"]
mod wires;

use crate::engines::{Engines, LogEngines};
use crate::stores::LocalStore;
use crate::{Node, NodeConfig, StartError};

use home::Home;
use stage::Stage;
use wires::{Answer, Wires};
