//! How processes and machines end: killed, paused, cut from power, stopped.

use storage::Durability;
use tokio::sync::oneshot;

use super::*;
use crate::machine::Life;

impl World {
    /// Ends a node's process at once. Its peers learn it `silence` later, its session ends `linger` later.
    pub fn kill(&self, position: usize, silence: Duration, linger: Duration) {
        let machine = &self.machines[position];
        let Life { process, node, session, identity } = std::mem::take(&mut *machine.life.lock());
        machine.life.lock().identity = identity;
        let Some(process) = process else { return };
        self.trouble(Trouble::Down, position);
        self.witness.ended(machine.id);
        self.ended(machine);
        if self.setup.engine == EngineKind::Memory {
            self.trouble(Trouble::Lost, position);
            self.witness.lost(machine.id);
            self.strike(position);
        }
        // Its links first: what its tasks would still send when they are dropped, a dead process does not.
        self.wires.end_process(process, silence);
        self.executor.kill(process);
        drop(node);
        machine.disk.kill();
        self.executor.at(self.executor.now().after(linger), move || drop(session));
        self.rewind_identity(machine);
    }

    /// Lets a node's process stand still for this long, as SIGSTOP and SIGCONT do.
    pub async fn pause(&self, position: usize, length: Duration) {
        let Some(process) = self.machines[position].life.lock().process else { return };
        self.tell(format!("{} pauses for {length:?}", self.machines[position].id));
        self.trouble(Trouble::Paused, position);
        self.executor.pause(process);
        self.executor.sleep(length).await;
        self.executor.resume(process);
        self.trouble_ends(Trouble::Paused, position, Duration::ZERO);
    }

    /// Lets what waits for a disk or a source in a node's process go on waiting until then.
    pub fn stall_waiting(&self, position: usize, until: Moment) {
        let Some(process) = self.machines[position].life.lock().process else { return };
        self.trouble(Trouble::Disk, position);
        self.trouble_ends(Trouble::Disk, position, until.since(self.executor.now()));
        self.executor.stall_waiting(process, until);
    }

    /// Lets every process that stands still go on.
    pub fn resume_all(&self) {
        self.wires.troubles().end_all(Trouble::Paused, self.executor.now());
        for process in self.machines.iter().filter_map(|machine| machine.life.lock().process) {
            self.executor.resume(process);
        }
    }

    /// Cuts a machine's power: as [`World::kill`], and unsynced data is lost or torn as `seed` says.
    pub fn cut_power(&self, position: usize, seed: u64, silence: Duration, linger: Duration) {
        self.kill(position, silence, linger);
        self.machines[position].disk.crash(seed);
        if self.setup.engine != EngineKind::Log(Durability::Always) {
            self.strike(position);
        }
    }

    /// Stops a node cleanly. Its process is gone afterwards. One that is killed while it stops does nothing more: it stops
    /// in its own process's tasks, as on a machine.
    pub async fn stop(&self, position: usize) {
        let machine = &self.machines[position];
        let (process, node) = {
            let life = machine.life.lock();
            (life.process, life.node.clone())
        };
        if let (Some(process), Some(node)) = (process, node) {
            self.trouble(Trouble::Down, position);
            let leaving = node.clone();
            if self.within(process, async move { leaving.leave().await }).await.is_none() {
                return;
            }
            self.wires.end_process(process, Duration::ZERO);
            self.executor.sleep(Duration::from_millis(20)).await;
            match self.within(process, async move { node.stop().await }).await {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => self.tell(format!("{} does not stop cleanly: {error}", machine.id)),
            }
        }
        self.kill(position, Duration::ZERO, Duration::ZERO);
    }

    /// Runs something in a process; `None` when the process is killed before it ends.
    async fn within<T: Send + 'static>(
        &self,
        process: ProcessId,
        body: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (told, hears) = oneshot::channel();
        let body = async move {
            let _ = told.send(body.await);
        };
        self.executor.spawn(process, Box::pin(body));
        hears.await.ok()
    }

    /// Planted: the first identity that was seen comes back, as if stopped cleanly before the first write.
    fn rewind_identity(&self, machine: &Machine) {
        if self.setup.plant != Some(Plant::RewoundIdentity) {
            return;
        }
        let Some(contents) = machine.disk.contents("identity") else { return };
        let text = String::from_utf8_lossy(&contents).into_owned();
        let Some(end) = text.find("checksum ") else { return };
        let text = format!("{}births 0\nstop 1\n", &text[..end]);
        let text = format!("{text}checksum {:016x}\n", model::Token::of(text.as_bytes()).0);
        let mut life = machine.life.lock();
        let first = life.identity.get_or_insert(text.into_bytes());
        machine.disk.plant("identity", first);
    }
}
