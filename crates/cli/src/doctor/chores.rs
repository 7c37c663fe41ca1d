//! What the doctor says of a node's work in the background: which chore met a bug.

use protocol::report::{ChoreReport, Status};

use super::finding::{Code, Finding};
use crate::status::{NodeStatus, chore_line};

/// One finding for each chore that has panicked. A failure that is no bug is told with what it is about.
pub(super) fn panicked(status: &NodeStatus, told: &Status) -> Vec<Finding> {
    let id = status.node.id;
    let finding = |chore: &ChoreReport| Finding {
        code: if chore.panics > 0 { Code::ChorePanics } else { Code::ChorePanicked },
        node: Some(id),
        store: None,
        what: chore_line(id, chore),
        next: format!(
            "report this bug with what the node printed on standard error; if the chore goes on panicking, stop {id} and \
             start it again with the same command"
        ),
    };
    told.chores.iter().filter(|chore| chore.panics_total > 0).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use protocol::report::ChoreState;

    use super::super::tests::answering;
    use super::*;

    #[test]
    fn a_chore_that_panicked_is_bad_until_it_works_again_and_a_failure_is_none() {
        let chore = |failures, panics, panics_total| ChoreReport {
            chore: "reap".to_owned(),
            state: ChoreState::Resting,
            seconds: 0.0,
            seconds_left: None,
            rounds_total: 3,
            failures,
            panics,
            panics_total,
            last_error: None,
        };
        let found = |failures, panics, panics_total| {
            let told = Status { chores: vec![chore(failures, panics, panics_total)], ..Status::default() };
            panicked(&answering(2, told.clone()), &told)
                .into_iter()
                .map(|found| found.code)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(2, 1, 2), [Code::ChorePanics]);
        assert_eq!(found(0, 0, 2), [Code::ChorePanicked]);
        assert_eq!(found(3, 0, 2), [Code::ChorePanicked], "what fails now is no bug");
        assert_eq!((found(0, 0, 0), found(2, 0, 0)), (vec![], vec![]));
    }
}
