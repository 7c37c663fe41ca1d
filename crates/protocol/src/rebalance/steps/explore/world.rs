//! What happens in the explored world, and the judge.

use super::chain::id;
use super::*;

impl State {
    pub(super) fn first(scope: &Scope) -> State {
        let mut nodes = [Place::default(); NODES];
        for (node, place) in nodes.iter_mut().enumerate() {
            let holding = scope.from.iter().take(scope.consistency.replicas.into());
            place.incomplete = !holding.into_iter().any(|&holder| holder == node);
        }
        State {
            chain: 0,
            nodes,
            write: Write::Unborn,
            hints: 0,
            blind: [0; 8],
            begins: 0,
            backs: 0,
            mishaps: 0,
        }
    }

    /// The other of two states that differ in who is who among nodes that are alike, if that is the lesser.
    pub(super) fn canonical(self, scope: &Scope) -> State {
        let Some((a, b)) = scope.alike else { return self };
        let swap = |mask: Mask| {
            let (has_a, has_b) = (is_in(a, mask), is_in(b, mask));
            mask & !(bit(a) | bit(b)) | if has_a { bit(b) } else { 0 } | if has_b { bit(a) } else { 0 }
        };
        let mut other = self;
        other.nodes.swap(a, b);
        other.nodes.iter_mut().for_each(|place| place.merged = swap(place.merged));
        other.blind = other.blind.map(swap);
        other.hints = swap(other.hints);
        if let Write::Flying { acknowledged, hinted, .. } = &mut other.write {
            (*acknowledged, *hinted) = (swap(*acknowledged), swap(*hinted));
        }
        self.min(other)
    }

    /// The facts as the headmaster may know them at best. What it knows too late only delays a step.
    pub(super) fn facts(&self, chain: &Chain) -> Facts {
        let mut facts = Facts::default();
        for (node, place) in self.nodes.iter().enumerate() {
            let at = if planted(Bug::SaysAdoptedEarly) { chain.len() - 1 } else { place.adopted.into() };
            let generation = chain[at].cluster.generation;
            let incarnation = place.incarnation.into();
            let merged = (0..NODES).filter(|&source| is_in(source, place.merged)).map(id).collect();
            let name = chain[0].cluster.stores[0].name.clone();
            let merged = [(name, merged)].into();
            let stays = is_in(node, chain[at].staying);
            let whole = is_in(node, chain[at].entering) || (stays && !place.incomplete);
            let entered = Entered { incarnation, generation, whole, merged };
            let known = NodeFacts {
                incarnation: Some(incarnation),
                adopted: Some((incarnation, generation)),
                gone: place.dead || (planted(Bug::GoneWhileItAnswers) && is_in(node, chain[0].old)),
                entered: [(PartitionId(0), entered)].into(),
            };
            facts.nodes.insert(id(node), known);
        }
        facts
    }

    /// Whether the node takes requests that were formed under this document.
    fn accepts(&self, node: usize, under: u8, chain: &Chain) -> bool {
        let place = &self.nodes[node];
        let since = chain[usize::from(place.adopted)].since;
        let older = under < since && !planted(Bug::AcceptsOlder);
        !place.dead && under <= place.adopted && !older
    }

    pub(super) fn happenings(&self, scope: &Scope, chains: &mut Chains) -> Vec<Happening> {
        let chain = chains.get(self.chain);
        let last = chain.last().unwrap();
        let mut happenings = Vec::new();
        let room = chain.len() < self.blind.len();
        if room && last.step.is_none() && self.begins < scope.begins {
            happenings.push(Happening::Begin);
        }
        if room && last.step.is_some() {
            happenings.push(Happening::Next);
            happenings.extend((self.backs < scope.backs).then_some(Happening::Back));
        }
        match self.write {
            Write::Unborn => happenings.extend((0..chain.len() as u8).map(|under| Happening::Form { under })),
            Write::Flying { under, acknowledged, hinted } => {
                let newer = under + 1..chain.len() as u8;
                happenings.extend(newer.map(|under| Happening::FormAgain { under }));
                for node in (0..NODES).filter(|&node| is_in(node, chain[usize::from(under)].writers)) {
                    let applies = !is_in(node, acknowledged) && self.accepts(node, under, &chain);
                    happenings.extend(applies.then_some(Happening::Apply { node }));
                    let hints =
                        scope.sloppy && !is_in(node, acknowledged | hinted) && self.accepts(4, under, &chain);
                    happenings.extend(hints.then_some(Happening::Hint { target: node }));
                }
            }
            Write::Acknowledged => {}
        }
        for target in (0..NODES).filter(|&target| is_in(target, self.hints)) {
            happenings.extend([Happening::Deliver { target }, Happening::Readdress { target }]);
        }
        for node in 0..NODES {
            self.happenings_at(node, scope, &chain, &mut happenings);
        }
        happenings
    }

    fn happenings_at(&self, node: usize, scope: &Scope, chain: &Chain, happenings: &mut Vec<Happening>) {
        let place = &self.nodes[node];
        let matters = scope.from.contains(&node) || scope.to.contains(&node) || (scope.sloppy && node == 4);
        if place.dead || !matters {
            return;
        }
        // To adopt two at once is to adopt one after the other, and to do nothing between.
        let newer = Some(place.adopted + 1).filter(|&document| usize::from(document) < chain.len());
        happenings.extend(newer.map(|document| Happening::Adopt { node, document }));
        let document = &chain[usize::from(place.adopted)];
        let brings_in = is_in(node, document.entering | document.staying) || place.incomplete;
        for source in (0..NODES).filter(|&source| brings_in && source != node && !self.nodes[source].dead) {
            happenings.push(Happening::Merge { node, source });
        }
        let leaves = !is_in(node, document.writers | document.entering) && document.step.is_none();
        if leaves && place.has {
            happenings.extend([Happening::Give { node }, Happening::Drop { node }]);
        }
        if self.mishaps < scope.mishaps {
            let flying =
                matches!(self.write, Write::Flying { acknowledged, .. } if is_in(node, acknowledged));
            // What a node acknowledges and loses before the write is complete is one copy fewer in any case.
            happenings.extend((!flying).then_some(Happening::LoseDisk { node }));
            happenings.extend((!flying).then_some(Happening::Die { node }));
        }
    }

    pub(super) fn step(&self, happening: Happening, scope: &Scope, chains: &mut Chains) -> State {
        let mut state = *self;
        let chain = chains.get(self.chain);
        let last = &chain.last().unwrap().cluster;
        match happening {
            Happening::Begin => {
                let cluster = begun(last, &chain, scope);
                state.chain = chains.push(self.chain, cluster);
                state.begins += 1;
            }
            Happening::Next => {
                if let Some(cluster) = plants::next(last, &self.facts(&chain)) {
                    state.chain = chains.push(self.chain, cluster);
                }
            }
            Happening::Back => {
                let cluster = plants::back(last).expect("it moves");
                state.chain = chains.push(self.chain, cluster);
                state.backs += 1;
            }
            Happening::Adopt { node, document } => state.adopt(node, document, &chain),
            Happening::Form { under } | Happening::FormAgain { under } => {
                state.write = Write::Flying { under, acknowledged: 0, hinted: 0 };
            }
            Happening::Apply { node } => {
                state.nodes[node].has = true;
                if let Write::Flying { acknowledged, .. } = &mut state.write {
                    *acknowledged |= bit(node);
                }
            }
            Happening::Hint { target } => {
                state.hints |= bit(target);
                if let Write::Flying { hinted, .. } = &mut state.write {
                    *hinted |= bit(target);
                }
            }
            Happening::Deliver { target } => state.deliver(target, &chain),
            Happening::Readdress { target } => {
                let document = &chain[usize::from(self.nodes[4].adopted)];
                if !is_in(target, document.writers) {
                    state.hints = state.hints & !bit(target) | document.writers;
                }
            }
            Happening::Merge { node, source } => state.merge(node, source, &chain),
            Happening::Give { node } => {
                let writers = chain[usize::from(self.nodes[node].adopted)].writers;
                for to in (0..NODES).filter(|&to| is_in(to, writers)) {
                    state.nodes[to].has |= self.accepts(to, self.nodes[node].adopted, &chain);
                }
            }
            Happening::Drop { node } => {
                let writers = chain[usize::from(self.nodes[node].adopted)].writers;
                let held = (0..NODES).filter(|&other| is_in(other, writers)).all(|other| {
                    self.nodes[other].has && self.accepts(other, self.nodes[node].adopted, &chain)
                });
                if held || planted(Bug::DropsUngiven) {
                    state.nodes[node].has = false;
                    state.nodes[node].incomplete = true;
                    state.nodes[node].merged = 0;
                }
            }
            Happening::LoseDisk { node } => state.lose_disk(node, &chain),
            Happening::Die { node } => {
                state.nodes[node].dead = true;
                state.mishaps += 1;
            }
        }
        state.conclude(scope, &chains.get(state.chain));
        state
    }

    fn adopt(&mut self, node: usize, document: u8, chain: &Chain) {
        let (before, after) = (&chain[usize::from(self.nodes[node].adopted)], &chain[usize::from(document)]);
        let place = &mut self.nodes[node];
        let enters = is_in(node, after.entering) && after.step == Some(Step::Copying);
        if before.since != after.since || enters {
            // What it did at another step tells nothing of this one.
            let keeps = planted(Bug::OlderMergesCount);
            place.merged = if keeps { place.merged } else { 0 };
        }
        // A node that did not hold the partition has nothing, whatever it held before.
        place.incomplete |= enters && !is_in(node, before.writers);
        place.adopted = document;
    }

    fn deliver(&mut self, target: usize, chain: &Chain) {
        let holder = self.nodes[4].adopted;
        let own = &chain[usize::from(self.nodes[target].adopted)];
        if is_in(target, own.writers) && self.accepts(target, holder, chain) {
            self.nodes[target].has = true;
            self.hints &= !bit(target);
        }
    }

    /// A node that enters, or that lost its records, merges what another one holds.
    fn merge(&mut self, node: usize, source: usize, chain: &Chain) {
        let (own, theirs) = (self.nodes[node], self.nodes[source]);
        let document = &chain[usize::from(own.adopted)];
        let enters = is_in(node, document.entering);
        let stays = is_in(node, document.staying);
        let sources = if enters || stays { document.old } else { document.readers };
        if !is_in(source, sources) {
            return;
        }
        let refuses = theirs.adopted >= own.adopted || planted(Bug::AnySourceCounts);
        let is_whole = !theirs.incomplete || planted(Bug::IncompleteSourceCounts);
        let place = &mut self.nodes[node];
        place.has |= theirs.has;
        if !(refuses && is_whole) {
            return;
        }
        place.merged |= bit(source);
        let numbers = if enters || stays { document.cluster.stores[0].consistency } else { document.read };
        let (replicas, needed) = (sources.count_ones(), u32::from(numbers.writes_required));
        let others = (place.merged & sources).count_ones();
        let successor = document.successions.iter().any(|&(own, leaving)| {
            own == node && leaving.is_some_and(|leaving| is_in(leaving, place.merged))
        });
        let there =
            (0..NODES).filter(|&n| n != node && is_in(n, sources) && !self.nodes[n].dead).count() as u32;
        let place = &mut self.nodes[node];
        if (enters && successor) || others >= (replicas + 1 - needed).min(there) {
            place.incomplete = false;
        }
    }

    fn lose_disk(&mut self, node: usize, chain: &Chain) {
        let place = &mut self.nodes[node];
        self.mishaps += 1;
        place.has = false;
        place.incomplete = true;
        // It starts again with what is published.
        place.adopted = chain.len() as u8 - 1;
        if !planted(Bug::ForgetsIncarnation) {
            place.incarnation += 1;
            place.merged = 0;
        }
    }

    /// What follows at once: the write is acknowledged, and nodes could answer without it.
    fn conclude(&mut self, scope: &Scope, chain: &Chain) {
        if let Write::Flying { under, acknowledged, hinted } = self.write
            && chain[usize::from(under)].is_quorum(acknowledged | hinted)
        {
            self.write = Write::Acknowledged;
        }
        if self.write != Write::Acknowledged || scope.sloppy {
            return;
        }
        for (under, document) in chain.iter().enumerate() {
            for node in (0..NODES).filter(|&node| is_in(node, document.readers)) {
                let place = &self.nodes[node];
                if !place.has && !place.incomplete && self.accepts(node, under as u8, chain) {
                    self.blind[under] |= bit(node);
                }
            }
        }
    }

    pub(super) fn judge(&self, chains: &Chains) -> Result<(), String> {
        if self.write != Write::Acknowledged {
            return Ok(());
        }
        let holders = self.nodes.iter().any(|place| place.has && !place.dead);
        if !holders && self.hints == 0 {
            return Err("an acknowledged write is lost".to_owned());
        }
        let chain = chains.get(self.chain);
        let needed = |under: usize| u32::from(chain[under].read.reads_required);
        let missing = |under: &usize| self.blind[*under].count_ones() >= needed(*under);
        match (0..chain.len()).find(missing) {
            Some(under) => {
                let step = chain[under].step;
                Err(format!("a get under document {under} ({step:?}) misses an acknowledged write"))
            }
            None => Ok(()),
        }
    }

    /// When everybody who is left does all that they can, the move ends, and all replicas hold the write.
    pub(super) fn settles(&self, scope: &Scope, chains: &mut Chains) -> Result<(), String> {
        let (mut state, patient) = (*self, Scope { begins: 0, backs: 0, mishaps: 0, ..scope.clone() });
        let all_there = state.nodes.iter().all(|place| !place.dead);
        for _ in 0..24 {
            let before = state;
            for happening in state.happenings(&patient, chains) {
                let idle = matches!(
                    happening,
                    Happening::Form { .. } | Happening::FormAgain { .. } | Happening::Drop { .. }
                );
                if !idle {
                    state = state.step(happening, &patient, chains);
                }
            }
            if state == before {
                break;
            }
        }
        let chain = chains.get(state.chain);
        let (last, room) = (chain.last().unwrap(), chain.len() < state.blind.len());
        if all_there && room && last.step.is_some() {
            return Err(format!("the move never ends\n{scope:?}\n{self:#?}\n{state:#?}"));
        }
        Ok(())
    }
}

/// The document by which a move begins, or a change of numbers: forth, or back to where the story began.
fn begun(last: &Cluster, chain: &Chain, scope: &Scope) -> Cluster {
    match scope.numbers {
        Some(numbers) => {
            let there = last.stores[0].consistency == scope.consistency;
            let to = if there { numbers } else { scope.consistency };
            let accepted = Accepted { fewer_zones: true, weaker: true };
            begin_numbers(last, "explored", to, accepted).expect("they may change")
        }
        None => {
            let there = chain[0].old == chain.last().unwrap().old;
            let to = if there { scope.to } else { scope.from };
            let moves = [(PartitionId(0), to.iter().map(|&node| id(node)).collect())];
            begin(last, &moves).expect("it may begin")
        }
    }
}
