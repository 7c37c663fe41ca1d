//! What the doors of all workers share.

use std::sync::Arc;

use protocol::admission::Admission;

use super::NodeConfig;
use crate::doors::native::ControlRoom;
use crate::doors::{http, resp};

/// What has been let in, and how much more may come.
pub(super) struct Doors {
    pub(super) resp: Arc<resp::RespShared>,
    pub(super) http: Arc<http::HttpShared>,
    /// What the node has taken in and not yet answered, over all doors.
    pub(super) admission: Arc<Admission>,
    /// Room for orders and questions of operators, which need no admission.
    pub(super) control: Arc<ControlRoom>,
}

impl Doors {
    pub(super) fn new(config: &NodeConfig) -> Doors {
        let admission = Admission::new(config.requests.limits);
        Doors {
            resp: resp::RespShared::new(config.doors.resp.clone(), admission.clone()),
            http: http::HttpShared::new(config.doors.http.clone(), admission.clone()),
            admission,
            control: ControlRoom::new(),
        }
    }

    /// Links of the native protocol now.
    pub(super) fn links(&self) -> usize {
        let others = self.resp.connections() + self.http.connections();
        self.admission.connections().saturating_sub(others)
    }
}
