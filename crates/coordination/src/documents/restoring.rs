//! Which of two versions of a document counts, where an export is brought back beside nodes that run.
//!
//! | what is there | beside the same document of the export |
//! |---|---|
//! | the same | stays |
//! | below `/members`, `/config/epochs`, `/config/ids` of the same cluster | the greater numbers count: they only grow |
//! | `/config/ids` of which no directory was given one | the exported one counts: nobody uses the other |
//! | `/active`, `/headmaster` | stays: nodes make the lists of what is registered when they need them |
//! | anything else | is somebody else's |
//!
//! Must never: lower a number that only grows.

use bytes::Bytes;

use super::{
    Epochs, Ids, Member, active_path, cluster_path, decode, encode, epochs_path, headmaster_path, ids_path,
    known,
};
use crate::DocumentPath;

/// What becomes of a document that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It stays as it is.
    Stays,
    /// It is replaced by this.
    Becomes(Bytes),
    /// It is not a version of the exported one: nothing may be restored here.
    Strange,
}

/// Whether the document must come last: once it is there, nodes follow all the others.
pub fn restored_last(path: &DocumentPath) -> bool {
    *path == cluster_path()
}

/// What becomes of the document at `path`, which holds `there`, when the one of an export is brought back.
pub fn restored(path: &DocumentPath, there: &[u8], exported: &Bytes) -> Restored {
    let merged = if there == &exported[..] || [active_path(), headmaster_path()].contains(path) {
        return Restored::Stays;
    } else if path.parent() == Some(known("/members")) {
        both(path, there, exported).map(|(there, exported): (Member, Member)| {
            // The last clean stop is one of its incarnation.
            let order = |member: &Member| (member.incarnation, member.redeemed);
            encode(if order(&exported) > order(&there) { &exported } else { &there })
        })
    } else if *path == epochs_path() {
        both(path, there, exported).map(|(there, exported): (Epochs, Epochs)| {
            let opened = there.opened.max(exported.opened);
            encode(&Epochs { opened, completed: there.completed.max(exported.completed) })
        })
    } else if *path == ids_path() {
        both(path, there, exported).and_then(|(there, exported): (Ids, Ids)| {
            if there.origin != exported.origin {
                // A `cluster create` that was broken off leaves such a document.
                return (there.last == there.named).then(|| encode(&exported));
            }
            let (last, named) = (there.last.max(exported.last), there.named.max(exported.named));
            Some(encode(&Ids { last, named, ..there }))
        })
    } else {
        None
    };
    match merged {
        Some(merged) if merged == there => Restored::Stays,
        Some(merged) => Restored::Becomes(merged),
        None => Restored::Strange,
    }
}

fn both<T: serde::de::DeserializeOwned>(
    path: &DocumentPath,
    there: &[u8],
    exported: &[u8],
) -> Option<(T, T)> {
    Some((decode(path, there).ok()?, decode(path, exported).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_only_grow_are_never_lowered_and_what_is_strange_is_told() {
        let stays = Restored::Stays;
        let becomes = |text: &str| Restored::Becomes(Bytes::from(text.to_owned()));
        let member = |incarnation: u64, redeemed: &str| {
            format!("{{\"incarnation\":{incarnation},\"redeemed\":{redeemed}}}")
        };
        let epochs =
            |opened: u64, completed: u64| format!("{{\"opened\":{opened},\"completed\":{completed}}}");
        let ids =
            |origin: &str, last: u32| format!("{{\"origin\":\"{origin}\",\"last\":{last},\"named\":3}}");
        let cases = [
            ("/active", "", "x", stays.clone()),
            ("/config/cluster", "{}", "{}", stays.clone()),
            ("/config/cluster", "{}", "{ }", Restored::Strange),
            ("/plans/1/state", "a", "b", Restored::Strange),
            ("/members/n1", &member(7, "2"), &member(7, "2"), stays.clone()),
            ("/members/n1", &member(8, "null"), &member(7, "2"), stays.clone()),
            ("/members/n1", &member(7, "1"), &member(7, "2"), becomes(&member(7, "2"))),
            ("/members/n1", &member(7, "3"), &member(8, "null"), becomes(&member(8, "null"))),
            ("/members/n1", "?", &member(8, "null"), Restored::Strange),
            ("/config/epochs", &epochs(9, 0), &epochs(7, 7), becomes(&epochs(9, 7))),
            ("/config/epochs", &epochs(9, 9), &epochs(9, 8), stays.clone()),
            ("/config/ids", &ids("a", 4), &ids("a", 5), becomes(&ids("a", 5))),
            ("/config/ids", &ids("a", 6), &ids("a", 5), stays),
            ("/config/ids", &ids("b", 4), &ids("a", 5), Restored::Strange),
            ("/config/ids", &ids("b", 3), &ids("a", 5), becomes(&ids("a", 5))),
        ];
        for (path, there, exported, expected) in cases {
            let path = DocumentPath::new(path).unwrap();
            let exported = Bytes::from(exported.to_owned());
            assert_eq!(restored(&path, there.as_bytes(), &exported), expected, "{path} {there}");
        }
    }
}
