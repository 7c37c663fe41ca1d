//! `tontine cert`: the node authority of a cluster, and the certificates of its nodes.
//!
//! The authority is a pair of files that this makes. Whoever has its key can make nodes, so the key stays off the nodes.
//! A certificate of any other authority makes no node; above all not one of the authority that gives certificates to a
//! whole company.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;

use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::{print, program};

/// Files of the authority in its directory.
const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority.key";
/// What the authority calls itself. All do so: they are told apart by their keys.
const AUTHORITY_NAME: &str = "tontine node authority";
/// Years for which a certificate is good, beside the present one.
const AUTHORITY_YEARS: i32 = 20;
const NODE_YEARS: i32 = 2;

/// What can be done with certificates.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum CertCommand {
    /// Make a node authority: a certificate that everyone may have, and a key to keep secret.
    Init(InitArguments),
    /// Make a node's certificate and key.
    Node(NodeArguments),
}

/// Where the authority is.
#[derive(Clone, Debug, clap::Args)]
pub struct InitArguments {
    /// The directory for its two files, authority.pem and authority.key. It is created if it does not exist.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Of which node.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: a certificate for the node that others reach at 10.0.0.1 and at db1.example
  tontine cert node authority db1 10.0.0.1 db1.example
It makes authority/db1.pem and authority/db1.key: bring both to the node, and authority.pem.")]
pub struct NodeArguments {
    /// The directory of the authority.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// What the files are called: of a-z 0-9 - and _.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Host names and IP addresses by which nodes and clients call the node, without a port.
    #[arg(value_name = "ADDRESS", required = true)]
    pub addresses: Vec<String>,
    /// Replace the files if they exist. A running node reads them again.
    #[arg(long)]
    pub renew: bool,
}

/// Carries out a command.
pub(crate) fn run(shared: &CliContext, command: CertCommand) -> Result<ExitCode, CliError> {
    match command {
        CertCommand::Init(InitArguments { directory }) => {
            init(&directory)?;
            let (certificate, key) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
            let document = json!({ "authority": certificate, "key": key });
            print(shared.format(), &document, || {
                format!(
                    "{} names the authority: bring it to each node and client\n{} makes nodes: keep it off the nodes\nmake a \
                     node's certificate with `{} cert node {} NAME ADDRESS`",
                    certificate.display(),
                    key.display(),
                    program(),
                    directory.display()
                )
            });
        }
        CertCommand::Node(arguments) => {
            let NodeArguments { directory, name, addresses, renew } = arguments;
            let (certificate, key) = certify(&directory, &name, &addresses, renew)?;
            let document = json!({ "certificate": certificate, "key": key, "addresses": addresses });
            print(shared.format(), &document, || {
                let (certificate, key) = (certificate.display(), key.display());
                let authority = directory.join(AUTHORITY);
                match renew {
                    true => format!(
                        "bring {certificate} and {key} to the node, in the place of the old ones; if it runs, it reads them \
                         again by itself"
                    ),
                    false => format!(
                        "start the node with --tls accept --tls-cert {certificate} --tls-key {key} --tls-authority {}, and \
                         with --tls require once all nodes have certificates",
                        authority.display()
                    ),
                }
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The certificate of an authority.
pub(crate) fn authority(directory: &Path) -> PathBuf {
    directory.join(AUTHORITY)
}

/// Makes an authority.
///
/// # Errors
/// When there is one already.
pub(crate) fn init(directory: &Path) -> Result<(), CliError> {
    let shown = directory.display();
    std::fs::create_dir_all(directory)
        .map_err(CliError::io(format!("cannot create the directory {shown}")))?;
    let key = KeyPair::generate().map_err(unmade)?;
    let certificate = authority_params().self_signed(&key).map_err(unmade)?;
    // The key first: it is refused where one lies, and without it a certificate is of no use.
    write(&directory.join(AUTHORITY_KEY), &key.serialize_pem(), true, false)?;
    write(&directory.join(AUTHORITY), &certificate.pem(), false, false)
}

/// Makes a node's certificate; where it and its key are.
///
/// # Errors
/// When there is no authority, or the files exist and are not to be replaced.
pub(crate) fn certify(
    directory: &Path,
    name: &str,
    addresses: &[String],
    renew: bool,
) -> Result<(PathBuf, PathBuf), CliError> {
    let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    if name.is_empty() || !name.bytes().all(is_letter) || name == "authority" {
        return Err(CliError::Usage(format!(
            "{name:?} is no name for files of a node; use a-z 0-9 - and _, and not `authority`"
        )));
    }
    if let Some(odd) =
        addresses.iter().find(|address| address.contains(':') && address.parse::<IpAddr>().is_err())
    {
        return Err(CliError::Usage(format!("{odd:?} is no host name or IP address; leave the port out")));
    }
    let path = directory.join(AUTHORITY_KEY);
    let hint = format!("cannot read {}; make an authority with `{} cert init`", path.display(), program());
    let issuer_key = std::fs::read_to_string(&path).map_err(CliError::io(hint))?;
    let issuer = Issuer::new(authority_params(), KeyPair::from_pem(&issuer_key).map_err(unmade)?);
    let key = KeyPair::generate().map_err(unmade)?;
    let mut params = CertificateParams::new(addresses.to_vec()).map_err(unmade)?;
    params.distinguished_name = named(name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // A node accepts connections and opens them.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = date_time_ymd(this_year(), 1, 1);
    params.not_after = date_time_ymd(this_year() + NODE_YEARS + 1, 1, 1);
    let certificate = params.signed_by(&key, &issuer).map_err(unmade)?;
    let paths = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
    write(&paths.1, &key.serialize_pem(), true, renew)?;
    write(&paths.0, &certificate.pem(), false, renew)?;
    Ok(paths)
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.not_before = date_time_ymd(this_year(), 1, 1);
    params.not_after = date_time_ymd(this_year() + AUTHORITY_YEARS + 1, 1, 1);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// The year, by this machine's clock. It turns a few hours early, which makes certificates good a little longer.
fn this_year() -> i32 {
    const YEAR_SECONDS: u64 = 31_556_952;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |since| since.as_secs());
    1970 + i32::try_from(seconds / YEAR_SECONDS).unwrap_or(0)
}

fn unmade(error: rcgen::Error) -> CliError {
    CliError::Other(format!("the certificate cannot be made: {error}"))
}

fn is_authority(path: &Path) -> bool {
    [AUTHORITY, AUTHORITY_KEY].iter().any(|name| path.ends_with(name))
}

/// Writes a file whole, or not at all. Only its owner reads a key.
fn write(path: &Path, pem: &str, is_key: bool, replace: bool) -> Result<(), CliError> {
    let failed = || CliError::io(format!("cannot write {}", path.display()));
    let mode = if is_key { 0o600 } else { 0o644 };
    let fresh = |path: &Path| {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(pem.as_bytes())?;
        file.sync_all()
    };
    if !replace {
        return fresh(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists if is_authority(path) => CliError::Other(format!(
                "{} exists already: a new authority would trust none of its nodes; to make one, choose another directory",
                path.display()
            )),
            ErrorKind::AlreadyExists => CliError::Other(format!(
                "{} exists already; to replace it and what belongs to it, add --renew, or choose another name",
                path.display()
            )),
            _ => failed()(error),
        });
    }
    let beside = path.with_extension("new");
    let _ = std::fs::remove_file(&beside);
    fresh(&beside).and_then(|()| std::fs::rename(&beside, path)).map_err(failed())
}
