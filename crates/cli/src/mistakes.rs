//! What is said of a command line that cannot be read, where our own words help more than those of the parser.
//!
//! People bring the names of other programs along (`set`, `del`, `ls`), and each gets the command that does the same.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands of other programs, what they do, and ours.
const ELSEWHERE: &[(&[&str], &str, &str)] = &[
    (&["set", "write", "add", "insert", "update"], "write a key", "put KEY VALUE"),
    (&["read", "fetch", "exists"], "read a key", "get KEY"),
    (&["del", "rm", "remove", "unlink"], "delete keys", "delete KEY..."),
    (&["expire"], "write a value that expires", "put KEY VALUE --ttl DURATION"),
    (&["ttl"], "see when a value expires", "get KEY"),
    (&["ls", "list", "scan"], "list keys", "keys"),
    (&["mset", "import", "restore"], "write many keys", "load FILE"),
    (&["dump", "backup", "save"], "write all records to a file", "export FILE"),
    (&["info", "nodes", "members", "ring", "ps"], "show the cluster and its nodes", "status"),
    (&["check", "health", "ping"], "check the cluster", "doctor"),
    (&["log", "logs", "monitor", "watch"], "see what happens", "events --follow"),
    (&["stats"], "see the numbers of a node", "metrics"),
    (&["start", "up", "run", "server"], "start a cluster on this machine", "dev"),
    (&["where", "locate", "getendpoints"], "see which nodes store a key", "route KEY"),
    (&["heal", "scrub"], "repair replicas", "repair start"),
    (&["benchmark"], "measure a cluster", "bench"),
];

/// What to say instead of the parser's own words; `None` where these are good enough.
pub(crate) fn explained(error: &clap::Error, commands: &clap::Command, words: &[OsString]) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
                return None;
            };
            let is_first = path(commands, words).0.is_empty();
            let known = ELSEWHERE.iter().find(|(names, ..)| is_first && names.contains(&word.as_str()));
            let (_, what, ours) = known?;
            Some(format!("there is no command `{word}`; to {what}, use `tontine {ours}`"))
        }
        // Which of the two it is depends on whether options were given.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let (path, deepest) = path(commands, words);
            let names: Vec<&str> = deepest.get_subcommands().map(clap::Command::get_name).collect();
            let names = names.into_iter().filter(|&name| name != "help").collect::<Vec<_>>().join(", ");
            let this = ["tontine"].into_iter().chain(path).collect::<Vec<_>>().join(" ");
            Some(format!("`{this}` needs a command: {names}; `{this} --help` explains them"))
        }
        _ => None,
    }
}

/// The commands that are named in these words, the outermost first, and the last of them.
fn path<'a>(commands: &'a clap::Command, words: &[OsString]) -> (Vec<&'a str>, &'a clap::Command) {
    let (mut path, mut deepest) = (Vec::new(), commands);
    for word in words.iter().skip(1) {
        if let Some(below) = word.to_str().and_then(|word| deepest.find_subcommand(word)) {
            path.push(below.get_name());
            deepest = below;
        }
    }
    (path, deepest)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::Arguments;

    fn said(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let commands = Arguments::command();
        let error = commands.clone().try_get_matches_from(&words).unwrap_err();
        explained(&error, &commands, &words)
    }

    #[test]
    fn commands_of_other_programs_lead_to_ours() {
        let put = "there is no command `set`; to write a key, use `tontine put KEY VALUE`";
        assert_eq!(said("tontine set a b").as_deref(), Some(put));
        assert_eq!(said("tontine -s keys -o json set a b"), None, "a store's name is a command here");
        assert_eq!(said("tontine repair ls"), None, "it is no command of ours in another place");
        assert_eq!(said("tontine frobnicate"), None);
    }

    #[test]
    fn a_command_that_needs_another_names_them() {
        let repair =
            "`tontine repair` needs a command: status, start, stop; `tontine repair --help` explains them";
        assert_eq!(said("tontine repair").as_deref(), Some(repair));
        assert_eq!(said("tontine repair --json").as_deref(), Some(repair));
        assert!(said("tontine").unwrap().starts_with("`tontine` needs a command: dev, serve, "));
    }

    #[test]
    fn each_word_leads_to_one_command_that_exists_and_none_is_ours() {
        let mut seen = BTreeSet::new();
        let commands = Arguments::command();
        for (names, _, ours) in ELSEWHERE {
            let ours = ours.split(' ').next().unwrap();
            assert!(commands.find_subcommand(ours).is_some(), "{ours}");
            for name in *names {
                assert!(seen.insert(name) && commands.find_subcommand(name).is_none(), "{name}");
            }
        }
    }
}
