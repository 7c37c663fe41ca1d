//! Which storage engine the stores of this node use, and where each keeps its files.

use std::sync::Arc;

use runtime::{BoxFuture, Disk, Ports};
use storage::{EnginePorts, LogEngine, LogOptions};
use storage::{MemoryEngine, Remains, StorageEngine, StorageError};

/// Opens one engine for each store, and one for the hints.
pub trait Engines: Send + Sync {
    /// What kind it opens, for people.
    fn kind(&self) -> &'static str;

    /// Whether what they hold is gone when the process ends, however it ends.
    fn forget(&self) -> bool {
        false
    }

    /// What lies under this name. Changes nothing.
    ///
    /// # Errors
    /// When it cannot be told whose what lies there is.
    fn remains(&self, name: &str) -> Result<Remains, StorageError>;

    /// Opens the engine of this name, creating it if need be.
    fn open(&self, name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>>;
}

/// Engines that keep everything in memory and lose it when the process ends.
pub struct MemoryEngines;

impl Engines for MemoryEngines {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn forget(&self) -> bool {
        true
    }

    fn remains(&self, _name: &str) -> Result<Remains, StorageError> {
        Ok(Remains::Nothing)
    }

    fn open(&self, _name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        Box::pin(async { Ok(Arc::new(MemoryEngine::new()) as Arc<dyn StorageEngine>) })
    }
}

/// Engines that log to a disk, each in a directory named after it.
pub struct LogEngines {
    /// The node's data directory.
    pub disk: Arc<dyn Disk>,
    /// Settings of each engine.
    pub options: LogOptions,
    /// Clock and tasks of the engines.
    pub ports: Ports,
}

impl Engines for LogEngines {
    fn kind(&self) -> &'static str {
        "log"
    }

    fn remains(&self, name: &str) -> Result<Remains, StorageError> {
        LogEngine::remains(&*self.disk, name)
    }

    fn open(&self, name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        let (disk, options) = (self.disk.clone(), self.options);
        let ports = EnginePorts { clock: self.ports.clock.clone(), tasks: self.ports.tasks.clone() };
        let directory = name.to_owned();
        Box::pin(async move {
            let engine = LogEngine::open(disk, &directory, options, ports).await?;
            Ok(engine as Arc<dyn StorageEngine>)
        })
    }
}
