//! How one server sees the cluster, as `CLUSTER NODES` tells it.
//!
//! Each server tells which of its slots are open: *importing* are those that it is to take, *migrating* those whose keys it
//! is giving away. Nobody else knows them, so each must be asked.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;
/// Letters of an id.
const ID_LETTERS: usize = 40;

/// What the cluster calls a server: 40 letters that its first start draws, and that it keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(String);

impl Id {
    /// The id that this is, if it is one.
    pub(super) fn parse(text: &str) -> Option<Id> {
        let is_id = text.len() == ID_LETTERS && text.bytes().all(|letter| letter.is_ascii_hexdigit());
        is_id.then(|| Id(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Enough of it for people.
    pub(super) fn short(&self) -> &str {
        &self.0[..8]
    }
}

/// A server, as another one or itself lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) id: Id,
    /// Where its clients reach it; none where the lister does not know that any more.
    pub(super) address: Option<SocketAddr>,
    pub(super) is_replica: bool,
    /// Whether the lister does not reach it.
    pub(super) is_failed: bool,
    /// The number that decides between two that claim one slot: the higher one wins.
    pub(super) epoch: u64,
    /// Its slots, first and last of each span.
    pub(super) spans: Vec<(u16, u16)>,
}

/// How one server sees the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) myself: Id,
    pub(super) listed: Vec<Listed>,
    /// Slots that it is to take, and from whom.
    pub(super) importing: BTreeMap<u16, Id>,
    /// Slots whose keys it gives away, and to whom.
    pub(super) migrating: BTreeMap<u16, Id>,
}

impl View {
    /// Reads the answer to `CLUSTER NODES`.
    pub(super) fn parse(text: &str) -> Result<View, String> {
        let (mut myself, mut listed) = (None, Vec::new());
        let (mut importing, mut migrating) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let odd = || "its list of members has a line in another form than Redis writes".to_owned();
            let [id, address, flags, _, _, _, epoch, _, slots @ ..] = &words[..] else { return Err(odd()) };
            let has = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
            // Such a one has an id for the moment only.
            if has("handshake") {
                continue;
            }
            let id = Id::parse(id).ok_or_else(odd)?;
            let mut spans = Vec::new();
            for word in slots {
                match open_slot(word) {
                    Some((slot, true, peer)) => drop(importing.insert(slot, peer)),
                    Some((slot, false, peer)) => drop(migrating.insert(slot, peer)),
                    None => spans.push(span(word).ok_or_else(odd)?),
                }
            }
            if has("myself") {
                myself = Some(id.clone());
            }
            let address = (!has("noaddr")).then(|| place(address)).flatten();
            let (is_replica, is_failed) = (has("slave"), has("fail") || has("fail?"));
            let epoch = epoch.parse().map_err(|_| odd())?;
            listed.push(Listed { id, address, is_replica, is_failed, epoch, spans });
        }
        let myself = myself.ok_or("its list of members has no line of itself")?;
        Ok(View { myself, listed, importing, migrating })
    }

    pub(super) fn listed(&self, id: &Id) -> Option<&Listed> {
        self.listed.iter().find(|one| one.id == *id)
    }

    /// The owner of each slot, as far as it knows one.
    pub(super) fn owners(&self) -> Vec<Option<&Id>> {
        let mut owners = vec![None; usize::from(SLOTS)];
        for one in &self.listed {
            for &(first, last) in &one.spans {
                owners[usize::from(first)..=usize::from(last)].fill(Some(&one.id));
            }
        }
        owners
    }

    /// Slots that it says are its own.
    pub(super) fn own(&self) -> impl Iterator<Item = u16> {
        let spans = self.listed(&self.myself).map(|one| one.spans.as_slice()).unwrap_or_default();
        spans.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Whether it says that a slot is this one's.
    pub(super) fn gives(&self, slot: u16, id: &Id) -> bool {
        let of = |one: &Listed| one.spans.iter().any(|&(first, last)| (first..=last).contains(&slot));
        self.listed(id).is_some_and(of)
    }
}

/// `[SLOT-<-ID]`: it is to come from there; `[SLOT->-ID]`: it goes there.
fn open_slot(word: &str) -> Option<(u16, bool, Id)> {
    let inner = word.strip_prefix('[')?.strip_suffix(']')?;
    let (slot, comes, peer) = match inner.split_once("-<-") {
        Some((slot, peer)) => (slot, true, peer),
        None => inner.split_once("->-").map(|(slot, peer)| (slot, false, peer))?,
    };
    Some((slot.parse().ok().filter(|slot| *slot < SLOTS)?, comes, Id::parse(peer)?))
}

fn span(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

/// `IP:PORT@BUS`, with further fields after a comma.
fn place(text: &str) -> Option<SocketAddr> {
    let text = text.split([',', '@']).next()?;
    let (host, port) = text.rsplit_once(':')?;
    let host: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    port.parse().ok().filter(|port| *port > 0).map(|port| SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "1fe9aafa96900ddeccc5745861135f63aae2a7c8";
    const B: &str = "d1a34af2aec530fc8f91b2dcb138c507ea7af987";

    #[test]
    fn a_list_of_members_is_read_with_its_open_slots() {
        let text = format!(
            "{A} 127.0.0.1:7000@17000,,tls-port=0 myself,master - 0 0 7 connected 0-99 101 [101->-{B}] [200-<-{B}]\n\
             {B} :0@0 master,noaddr,fail? - 1 2 3 disconnected 200-16383\n\
             {B} 127.0.0.9:7000@17000 handshake - 0 0 0 connected\n"
        );
        let view = View::parse(&text).unwrap();
        let (a, b) = (Id::parse(A).unwrap(), Id::parse(B).unwrap());
        assert_eq!(view.myself, a);
        assert_eq!(view.listed.len(), 2);
        assert_eq!(view.listed[0].address, Some("127.0.0.1:7000".parse().unwrap()));
        assert_eq!((view.listed[1].address, view.listed[1].is_failed), (None, true));
        assert_eq!(view.own().count(), 101);
        assert_eq!((view.migrating.get(&101), view.importing.get(&200)), (Some(&b), Some(&b)));
        let owners = view.owners();
        assert_eq!((owners[100], owners[101], owners[300]), (None, Some(&a), Some(&b)));
        assert!(view.gives(101, &a) && !view.gives(101, &b));
    }

    #[test]
    fn a_list_in_another_form_is_refused() {
        for text in [
            String::new(),
            "no".to_owned(),
            format!("{A} 127.0.0.1:1@2 myself,master - 0 0 7 connected 16384"),
            format!("{A} 127.0.0.1:1@2 myself,master - 0 0 7 connected 9-3"),
            format!("{A} 127.0.0.1:1@2 myself,master - 0 0 7 connected [5-x-{B}]"),
            format!("{A} 127.0.0.1:1@2 master - 0 0 7 connected 5"),
            "short 127.0.0.1:1@2 myself,master - 0 0 7 connected 5".to_owned(),
        ] {
            assert!(View::parse(&text).is_err(), "{text}");
        }
    }
}
