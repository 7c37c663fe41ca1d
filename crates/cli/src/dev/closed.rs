//! The certificates and the first user of a closed cluster on this machine.
//!
//! All of it lies in one folder that only its owner reads, the key of the authority too: who reads it is the owner of the
//! cluster. That is right for one machine and one person, and for nothing else.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::access::{Grant, UserChange, UserName, Users};
use runtime::secret::Secret;

use crate::cert_command;
use crate::failure::CliError;

/// The folder, below the data directory.
const FOLDER: &str = "tls";
/// The file with the secret of the first user, in it.
const ROOT_SECRET: &str = "root.secret";
/// The first user.
const ROOT: &str = "root";
/// Where a cluster of one machine is called.
const ADDRESSES: [&str; 2] = ["127.0.0.1", "localhost"];

/// The certificates of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    folder: PathBuf,
}

impl Closed {
    /// The certificates in a data directory; makes the authority where there is none.
    pub(super) fn open(data_dir: &Path) -> Result<Closed, CliError> {
        let folder = data_dir.join(FOLDER);
        if !cert_command::authority(&folder).exists() {
            let mut builder = std::fs::DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(CliError::io(format!("cannot create the directory {}", folder.display())))?;
            cert_command::init(&folder)?;
        }
        Ok(Closed { folder })
    }

    /// The words by which a process called `name` shows a certificate; makes one where there is none.
    pub(super) fn words(&self, name: &str) -> Result<Vec<String>, CliError> {
        let (mut certificate, mut key) =
            (self.folder.join(format!("{name}.pem")), self.folder.join(format!("{name}.key")));
        if !certificate.exists() {
            (certificate, key) =
                cert_command::certify(&self.folder, name, &ADDRESSES.map(str::to_owned), true)?;
        }
        Ok(vec![
            format!("--tls-cert={}", certificate.display()),
            format!("--tls-key={}", key.display()),
            format!("--tls-authority={}", self.authority().display()),
        ])
    }

    /// For one more node that somebody starts by hand: the command that makes its certificate, and words of `serve`.
    pub(super) fn words_to_show(&self, name: &str) -> (String, String) {
        let file = |name: String| crate::holder::shell(&[self.folder.join(name).display().to_string()]);
        let folder = crate::holder::shell(&[self.folder.display().to_string()]);
        (
            format!("cert node {folder} {name} {}", ADDRESSES.join(" ")),
            format!(
                " --tls require --tls-cert {} --tls-key {} --tls-authority {}",
                file(format!("{name}.pem")),
                file(format!("{name}.key")),
                file("authority.pem".to_owned())
            ),
        )
    }

    /// The certificate of the authority.
    pub(super) fn authority(&self) -> PathBuf {
        cert_command::authority(&self.folder)
    }

    /// The secret of the first user, if this command made it.
    pub(super) fn secret(&self) -> Option<PathBuf> {
        let path = self.folder.join(ROOT_SECRET);
        path.exists().then_some(path)
    }

    /// The users of a new cluster: one that may do everything. A secret that lies there from an earlier attempt is taken.
    pub(super) fn users(&self) -> Result<Users, CliError> {
        let path = self.folder.join(ROOT_SECRET);
        let failed = || CliError::io(format!("the secret in {} cannot be kept", path.display()));
        let secret = match std::fs::read_to_string(&path) {
            Ok(text) => Secret::parse(&text).map_err(|error| CliError::Other(error.to_string()))?,
            Err(_) => {
                let secret = Secret::generate().map_err(failed())?;
                let mut options = std::fs::OpenOptions::new();
                let mut file =
                    options.write(true).create_new(true).mode(0o600).open(&path).map_err(failed())?;
                writeln!(file, "{}", secret.text()).and_then(|()| file.sync_all()).map_err(failed())?;
                secret
            }
        };
        let user = UserName::new(ROOT).expect("it is a well-formed name");
        let (secret, grants) = (secret.digest(), BTreeSet::from([Grant::Admin]));
        let create = UserChange::Create { user, secret, grants, redis_store: None };
        Ok(Users::default().changed(&create).expect("an administrator may be the first user"))
    }
}
