//! Invariant 6, of the documents themselves: the numbers in them only grow, whoever writes and whatever goes wrong with
//! the coordination service.

use std::collections::BTreeMap;

use coordination::DocumentPath;
use coordination::documents::{Epochs, Member, cluster_path, epochs_path};
use model::{Cluster, Generation};

use super::Violation;

/// What was written so far.
#[derive(Debug, Default)]
pub struct Numbers {
    generation: Option<Generation>,
    epochs: Epochs,
    incarnations: BTreeMap<DocumentPath, u64>,
    broken: Vec<Violation>,
}

impl Numbers {
    /// A document was written. What is none of these, or cannot be read, is passed over.
    pub fn written(&mut self, path: &DocumentPath, data: &[u8]) {
        if *path == cluster_path() {
            let Ok(cluster) = serde_json::from_slice::<Cluster>(data) else { return };
            if self.generation.is_some_and(|before| before >= cluster.generation) {
                self.say(format!(
                    "generation {:?} is written over {:?}",
                    cluster.generation, self.generation
                ));
            }
            self.generation = Some(cluster.generation);
        } else if *path == epochs_path() {
            let Ok(epochs) = serde_json::from_slice::<Epochs>(data) else { return };
            if epochs.opened < self.epochs.opened || epochs.completed < self.epochs.completed {
                self.say(format!("{epochs:?} are written over {:?}", self.epochs));
            }
            self.epochs = epochs;
        } else if path.parent().is_some_and(|parent| parent.to_string() == "/members") {
            let Ok(member) = serde_json::from_slice::<Member>(data) else { return };
            let before = self.incarnations.insert(path.clone(), member.incarnation).unwrap_or(0);
            if member.incarnation < before {
                self.say(format!("{path} says {} after {before}", member.incarnation));
            }
        }
    }

    fn say(&mut self, detail: String) {
        self.broken.push(Violation {
            invariant: 6,
            about: None,
            detail: format!("a number goes backwards: {detail}"),
        });
    }

    /// What went backwards.
    pub fn broken(&self) -> Vec<Violation> {
        self.broken.clone()
    }
}

#[cfg(test)]
mod tests {
    use coordination::documents::member_path;
    use model::{Node, NodeId, Ring, Zone};

    use super::*;

    #[test]
    fn numbers_may_grow_and_one_that_goes_backwards_is_named() {
        let write = |written: &[(&DocumentPath, &str)]| {
            let mut numbers = Numbers::default();
            written.iter().for_each(|(path, data)| numbers.written(path, data.as_bytes()));
            numbers.broken().len()
        };
        let (epochs, member) = (epochs_path(), member_path(NodeId(1)));
        let epochs_of = |opened, completed| format!("{{\"opened\":{opened},\"completed\":{completed}}}");
        let (first, second, less) = (epochs_of(2, 1), epochs_of(2, 2), epochs_of(3, 0));
        assert_eq!(write(&[(&epochs, &first), (&epochs, &second), (&epochs, &second)]), 0);
        assert_eq!(write(&[(&epochs, &first), (&epochs, &less)]), 1);
        let (seven, eight) = ("{\"incarnation\":7}", "{\"incarnation\":8}");
        assert_eq!(write(&[(&member, seven), (&member, seven), (&member, eight)]), 0);
        assert_eq!(write(&[(&member, eight), (&member, seven)]), 1);
        let cluster = |generation| {
            let zone = Zone("a".to_owned());
            let ring = Ring::equal_slices(8, &[(NodeId(1), zone.clone())]);
            let node = Node::new(NodeId(1), zone, "h1:1", None);
            let mut cluster = Cluster::new("sim", vec![node], ring, Vec::new());
            cluster.generation = Generation(generation);
            serde_json::to_string(&cluster).expect("it can be written")
        };
        let (path, one, two) = (cluster_path(), cluster(1), cluster(2));
        assert_eq!(write(&[(&path, &one), (&path, &two)]), 0);
        assert_eq!(write(&[(&path, &two), (&path, &two), (&path, &one)]), 2);
    }
}
