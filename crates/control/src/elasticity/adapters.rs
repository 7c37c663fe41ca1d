//! The adapters that a controller knows, by the names that documents call them, and how each is started.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use runtime::{BoxFuture, Clock, Programs};
use serde::Deserialize;
use serde_json::Value as Json;

use super::rpc::Child;

/// The longest time that a call may be given, in seconds.
const DEADLINE_MAX: u64 = 600;

/// What an adapter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The managed database.
    Engine,
    /// Machines.
    Provider,
}

impl Role {
    /// Its table in the file of adapters.
    pub fn table(self) -> &'static str {
        match self {
            Role::Engine => "engines",
            Role::Provider => "providers",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Role::Engine => "engine",
            Role::Provider => "provider",
        })
    }
}

/// How an adapter is started.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Its program and the words for it.
    pub command: Vec<String>,
    /// Variables beside those of the controller.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// How long a call may take, in seconds, 1 to 600. Default: 10.
    #[serde(default = "deadline")]
    pub deadline: u64,
}

fn deadline() -> u64 {
    10
}

/// The file of adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptersFile {
    /// Engines by name.
    #[serde(default)]
    pub engines: BTreeMap<String, Launch>,
    /// Providers by name.
    #[serde(default)]
    pub providers: BTreeMap<String, Launch>,
}

impl AdaptersFile {
    /// Refuses an adapter that cannot be started, or a deadline out of bounds.
    ///
    /// # Errors
    /// The first field that is wrong, and what to write instead.
    pub fn check(&self) -> Result<(), String> {
        for (role, launches) in [(Role::Engine, &self.engines), (Role::Provider, &self.providers)] {
            for (name, launch) in launches {
                let field = format!("{}.{name}", role.table());
                if launch.command.first().is_none_or(String::is_empty) {
                    return Err(format!("{field}.command is empty; write the program and its words"));
                }
                if !(1..=DEADLINE_MAX).contains(&launch.deadline) {
                    return Err(format!("{field}.deadline must be 1 to {DEADLINE_MAX} seconds"));
                }
            }
        }
        Ok(())
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Whether the adapter refused for good.
    pub for_good: bool,
    /// Whether it is certain that nothing was done: the adapter answered so, or was not asked.
    pub undone: bool,
    /// Which adapter, what failed, why, and what helps.
    pub detail: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.detail)
    }
}

/// Where adapters are asked. Tests put their own below an office.
pub trait Adapters: Send + Sync {
    /// Asks the adapter of this role and name.
    fn call<'a>(
        &'a self,
        adapter: (Role, &'a str),
        method: &'a str,
        params: Json,
    ) -> BoxFuture<'a, Result<Json, CallError>>;
}

/// Adapters that are child processes, started when they are asked first.
pub struct ChildAdapters {
    /// Where the file is, for messages.
    file: String,
    children: BTreeMap<(Role, String), Child>,
}

impl ChildAdapters {
    /// Those of a file that was checked.
    pub fn new(
        file: impl Into<String>,
        adapters: &AdaptersFile,
        programs: &Arc<dyn Programs>,
        clock: &Arc<dyn Clock>,
    ) -> ChildAdapters {
        let file = file.into();
        assert_eq!(adapters.check(), Ok(()), "{file} was checked");
        let mut children = BTreeMap::new();
        for (role, launches) in [(Role::Engine, &adapters.engines), (Role::Provider, &adapters.providers)] {
            for (name, launch) in launches {
                let called = format!("{role} adapter {name}");
                let place = format!("[{}.{name}] in {file}", role.table());
                let child = Child::new((called, place), launch.clone(), programs.clone(), clock.clone());
                children.insert((role, name.clone()), child);
            }
        }
        ChildAdapters { file, children }
    }
}

impl Adapters for ChildAdapters {
    fn call<'a>(
        &'a self,
        (role, name): (Role, &'a str),
        method: &'a str,
        params: Json,
    ) -> BoxFuture<'a, Result<Json, CallError>> {
        Box::pin(async move {
            let Some(child) = self.children.get(&(role, name.to_owned())) else {
                let known = self.children.keys().filter(|(of, _)| *of == role).map(|(_, name)| name.as_str());
                let known: Vec<&str> = known.collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(CallError {
                    for_good: false,
                    undone: true,
                    detail: format!(
                        "{role} adapter {name} is not in {} (it has {known}); add [{}.{name}] there and start \
                         `tontine elastic run` again, or name another one in the policy with `tontine elastic apply`",
                        self.file,
                        role.table()
                    ),
                });
            };
            child.call(method, params).await
        })
    }
}
