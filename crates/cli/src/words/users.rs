//! Why users are not changed.

use model::access::UserError;

/// Why users were not changed, and what to do.
pub(super) fn refused(error: &UserError) -> String {
    let advice = match error {
        UserError::Exists { user } => format!(
            "give it other rights with `tontine user grant {user}`, or another secret with `tontine user rotate {user}`"
        ),
        UserError::Unknown { .. } => "`tontine user list` shows the users that there are".to_owned(),
        UserError::TooMany => {
            "let programs share a user, or remove one with `tontine user remove NAME`".to_owned()
        }
        UserError::TooManyGrants { user } => format!(
            "take some with `tontine user grant {user} --take RIGHT`; a prefix such as `read:STORE/PREFIX` covers many keys"
        ),
        UserError::SecretTaken => "repeat the command, which makes another one".to_owned(),
        UserError::NoSecrets => "create another user, which has a secret".to_owned(),
        UserError::TwoSecrets { user } => format!(
            "bring the newest to every program and run `tontine user rotate {user} --finish`, or end both with `--at-once`"
        ),
        UserError::FirstNotAdmin { .. } => {
            "run `tontine user create root admin` first, and create the others with its secret".to_owned()
        }
        UserError::LastAdmin { .. } => {
            "give another user the right first, with `tontine user grant NAME admin`".to_owned()
        }
    };
    format!("{error}; {advice}")
}
