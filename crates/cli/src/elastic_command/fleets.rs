//! Reading fleets, giving orders to them, and waiting for answers.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ::coordination::documents::elasticity::{self, FleetError, office_path};
use ::coordination::documents::{ReadError, office};
use ::coordination::{CoordinationService, Document};
use model::WallMillis;
use model::elasticity::{Fleet, FleetOrder, FleetOrderGiven, Look, ORDERS_MAX};

use super::words;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::program;

/// How long a command waits for the answer to an order: a controller that ends meanwhile has a successor by then.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);
/// After how long it says for whom it waits.
const QUIET_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(300);
/// How often a document is read anew where another process was faster.
const TRIES_MAX: usize = 20;

/// The documents of fleets.
pub(crate) struct Fleets {
    pub(super) session: Arc<dyn CoordinationService>,
}

impl Fleets {
    /// Those that a session reaches.
    pub(crate) fn new(session: Arc<dyn CoordinationService>) -> Fleets {
        Fleets { session }
    }

    /// Whether a member is of a fleet.
    pub(crate) async fn has_member(&self, name: &str, member: &str) -> Result<bool, CliError> {
        let (fleet, _) = self.read(name).await?;
        Ok(fleet.machines.iter().any(|machine| machine.member.as_deref() == Some(member)))
    }

    /// Gives an order, and waits for its answer; its number.
    pub(crate) async fn order(&self, name: &str, order: &FleetOrder) -> Result<u64, CliError> {
        let number = give(self, name, order).await?;
        self.answered(name, number).await?;
        Ok(number)
    }

    /// Those of a service that is there.
    pub(super) async fn open(service: &CoordinationArguments) -> Result<Fleets, CliError> {
        Ok(Fleets { session: service.existing().await? })
    }

    /// Those of a service, which is created where there is none: a directory.
    pub(super) async fn create(service: &CoordinationArguments) -> Result<Fleets, CliError> {
        let place = service.place_to_go_by()?;
        Ok(Fleets { session: crate::coordination::open(&place, true).await? })
    }

    /// All names.
    pub(super) async fn names(&self) -> Result<Vec<String>, CliError> {
        Ok(elasticity::names(&*self.session).await?)
    }

    /// A fleet, if there is one.
    pub(super) async fn look_for(&self, name: &str) -> Result<Option<(Fleet, Document)>, CliError> {
        elasticity::read(&*self.session, name).await.map_err(unread)
    }

    /// A fleet.
    pub(super) async fn read(&self, name: &str) -> Result<(Fleet, Document), CliError> {
        if let Some(found) = self.look_for(name).await? {
            return Ok(found);
        }
        let names = self.names().await?;
        let known = if names.is_empty() { "there is none yet".to_owned() } else { names.join(", ") };
        Err(CliError::Other(format!(
            "there is no fleet {name} (fleets: {known}); create it with `{} elastic apply FILE --name {name}`",
            program()
        )))
    }

    /// What a controller saw last.
    pub(super) async fn last_look(&self, name: &str) -> Result<Option<Look>, CliError> {
        elasticity::read_look(&*self.session, name).await.map_err(unread)
    }

    /// Which process holds the office, if one does.
    pub(super) async fn controller(&self) -> Result<Option<String>, CliError> {
        let holder = office::holder(&*self.session, &office_path()).await?;
        Ok(holder.map(|(_, candidate)| candidate.process))
    }

    /// Waits for the answer to an order.
    pub(super) async fn answered(&self, name: &str, number: u64) -> Result<(), CliError> {
        let began = Instant::now();
        let mut is_told = false;
        loop {
            let (fleet, _) = self.read(name).await?;
            let given = fleet.orders.iter().find(|given| given.number == number);
            match given.map(|given| &given.answer) {
                Some(None) => {}
                Some(Some(Ok(()))) => return Ok(()),
                Some(Some(Err(held))) => {
                    return Err(CliError::Other(format!(
                        "the order was refused: {}",
                        words::held(name, held)
                    )));
                }
                // So many orders came since that the document has dropped it: it was answered.
                None => return Ok(()),
            }
            if began.elapsed() >= QUIET_TIME_MAX && !is_told {
                is_told = true;
                say!("{}", self.waits_for(number).await?);
            }
            if began.elapsed() >= ANSWER_TIME_MAX {
                return Err(CliError::Unanswered(format!(
                    "order {number} was given to fleet {name} and has no answer after {} s: a controller carries it out \
                     when it can; start one with `{} elastic run`",
                    ANSWER_TIME_MAX.as_secs(),
                    program()
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn waits_for(&self, number: u64) -> Result<String, CliError> {
        Ok(match self.controller().await? {
            Some(process) => format!("order {number} waits for the controller ({process})"),
            None => format!(
                "order {number} waits for a controller, and none runs; it stays; start one with `{} elastic run`",
                program()
            ),
        })
    }
}

/// Puts an order into a fleet; its number there.
async fn give(fleets: &Fleets, name: &str, order: &FleetOrder) -> Result<u64, CliError> {
    for _ in 0..TRIES_MAX {
        let (mut fleet, document) = fleets.read(name).await?;
        let waiting = fleet.orders.iter().filter(|given| given.answer.is_none()).count();
        if waiting >= ORDERS_MAX {
            return Err(CliError::Other(format!(
                "{waiting} orders wait in fleet {name} already; start a controller with `{} elastic run`",
                program()
            )));
        }
        let number = fleet.orders.iter().map(|given| given.number).max().unwrap_or(0) + 1;
        let by = format!("{} at {}", crate::orders::user(), crate::headmaster::host());
        fleet.orders.push(FleetOrderGiven { number, order: order.clone(), by, at: now(), answer: None });
        fleet.generation += 1;
        match elasticity::publish(&*fleets.session, &fleet, &document).await {
            Ok(()) => return Ok(number),
            Err(FleetError::Overtaken { .. }) => {}
            Err(error) => return Err(unwritten(error)),
        }
    }
    Err(CliError::Other(format!("fleet {name} changes too often; try again")))
}

/// The time of this machine.
pub(super) fn now() -> WallMillis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn unread(error: ReadError) -> CliError {
    match error {
        ReadError::Coordination(error) => error.into(),
        error => CliError::Other(error.to_string()),
    }
}

pub(super) fn unwritten(error: FleetError) -> CliError {
    match error {
        FleetError::Read(error) => unread(error),
        FleetError::BadName { .. } => CliError::Usage(error.to_string()),
        error => CliError::Other(error.to_string()),
    }
}
