//! `tontine user`: who may use a closed cluster, and for what.
//!
//! A secret is made here, and only its digest leaves this process.
//!
//! Must never: print a secret in a JSON document, which programs log, or take one from the command line, which everybody
//! on the machine sees.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::Client;
use client::report::Parts;
use model::access::{Grant, UserChange, UserName, Users};
use model::order::{Order, OrderOutcome};
use model::{Node, NodeId, StoreName};
use runtime::secret::Secret;
use serde_json::{Value as Json, json};

use crate::context::CliContext;
use crate::failure::CliError;
use crate::orders;
use crate::output::{print, program};
use crate::text::{Format, count, table};

/// How long a command waits until nodes follow its change: a program that uses a new secret at once shall not be refused.
const ADOPTED_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What can be done with users.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum UserCommand {
    /// List the users and what they may do.
    List,
    /// Create a user, and show its secret once. The first user closes the cluster, and must have the right admin.
    Create(CreateUserArguments),
    /// Give a user rights, or take some away.
    Grant(GrantArguments),
    /// Give a user a new secret. The one that it has stays good until `--finish`.
    Rotate(RotateArguments),
    /// Remove a user. Nodes serve it no longer within seconds.
    Remove(UserArguments),
}

/// Which user.
#[derive(Clone, Debug, clap::Args)]
pub struct UserArguments {
    /// Its name: 1 to 64 of a-z 0-9 _ - . beginning with a letter.
    #[arg(value_name = "NAME", value_parser = parse_user)]
    pub name: UserName,
}

/// Where a new secret goes.
#[derive(Clone, Debug, clap::Args)]
pub struct SecretArguments {
    /// Write the secret to this new file, which only you can read, instead of printing it.
    #[arg(long, value_name = "FILE")]
    pub secret_to: Option<PathBuf>,
}

/// Which user, with which rights.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine user create root admin                         the first user: it closes the cluster
  tontine user create shop read:carts write:carts        a program that reads and writes one store
  tontine user create monitor observe                    status, events and metrics, and no key
  tontine user create anyone read:public                 clients without a secret may read one store

Rights: read:STORE, write:STORE, read:STORE/PREFIX, write:STORE/PREFIX, scan:STORE (`*` is every store), observe, \
operate, admin.")]
pub struct CreateUserArguments {
    /// Which user.
    #[command(flatten)]
    pub user: UserArguments,
    /// What it may do.
    #[arg(value_name = "RIGHT")]
    pub grants: Vec<Grant>,
    /// The store in which its Redis connections start, if not `default`.
    #[arg(long, value_name = "STORE", value_parser = parse_store)]
    pub redis_store: Option<StoreName>,
    /// Where its secret goes.
    #[command(flatten)]
    pub secret: SecretArguments,
}

/// Which user, and what changes.
#[derive(Clone, Debug, clap::Args)]
pub struct GrantArguments {
    /// Which user.
    #[command(flatten)]
    pub user: UserArguments,
    /// Rights that it gets.
    #[arg(value_name = "RIGHT")]
    pub give: Vec<Grant>,
    /// A right that it loses; may be given several times.
    #[arg(long, value_name = "RIGHT")]
    pub take: Vec<Grant>,
    /// The store in which its Redis connections start from now on.
    #[arg(long, value_name = "STORE", value_parser = parse_store)]
    pub redis_store: Option<StoreName>,
}

/// Which user, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct RotateArguments {
    /// Which user.
    #[command(flatten)]
    pub user: UserArguments,
    /// The new secret is the only one from now on: the old one is stolen.
    #[arg(long)]
    pub at_once: bool,
    /// Make no secret, and take the old one no longer: every program has the new one.
    #[arg(long, conflicts_with_all = ["at_once", "secret_to"])]
    pub finish: bool,
    /// Where the new secret goes.
    #[command(flatten)]
    pub secret: SecretArguments,
}

fn parse_user(text: &str) -> Result<UserName, String> {
    UserName::new(text).map_err(|error| error.to_string())
}

fn parse_store(text: &str) -> Result<StoreName, String> {
    StoreName::new(text).map_err(|error| error.to_string())
}

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: UserCommand) -> Result<ExitCode, CliError> {
    match command {
        UserCommand::List => {
            let cluster = shared.client().await?.cluster();
            let document = json!({ "generation": cluster.generation.0, "users": users_json(&cluster.users) });
            print(shared.format(), &document, || listed(&cluster.users));
            Ok(ExitCode::SUCCESS)
        }
        UserCommand::Create(CreateUserArguments { user, grants, redis_store, secret }) => {
            let (user, grants) = (user.name, grants.into_iter().collect());
            if user.is_anyone() {
                // It is kept of nobody, and nobody sees it.
                let nothing = Secret::generate().map_err(CliError::io("cannot make a secret"))?.digest();
                let change = UserChange::Create { user, secret: nothing, grants, redis_store };
                return changed(&shared, change).await;
            }
            with_secret(&shared, &secret, |secret| UserChange::Create { user, secret, grants, redis_store })
                .await
        }
        UserCommand::Rotate(RotateArguments { user, finish: true, .. }) => {
            changed(&shared, UserChange::Retire { user: user.name }).await
        }
        UserCommand::Rotate(RotateArguments { user, at_once, secret, .. }) => {
            let user = user.name;
            with_secret(&shared, &secret, |secret| UserChange::Rotate { user, secret, at_once }).await
        }
        UserCommand::Grant(GrantArguments { user, give, take, redis_store }) => {
            let (give, take): (BTreeSet<Grant>, BTreeSet<Grant>) =
                (give.into_iter().collect(), take.into_iter().collect());
            if give.is_empty() && take.is_empty() && redis_store.is_none() {
                let error = "name a right to give, or one to --take, or a --redis-store";
                return Err(CliError::Usage(error.to_owned()));
            }
            changed(&shared, UserChange::Grant { user: user.name, give, take, redis_store }).await
        }
        UserCommand::Remove(user) => changed(&shared, UserChange::Remove { user: user.name }).await,
    }
}

/// Makes a secret, orders the change, and hands the secret out once the order may have been carried out.
async fn with_secret(
    shared: &CliContext,
    arguments: &SecretArguments,
    change: impl FnOnce(model::access::SecretDigest) -> UserChange,
) -> Result<ExitCode, CliError> {
    if shared.format() == Format::Json && arguments.secret_to.is_none() {
        let error = "a secret is never part of a JSON document; add --secret-to FILE";
        return Err(CliError::Usage(error.to_owned()));
    }
    let secret = Secret::generate().map_err(CliError::io("cannot make a secret"))?;
    let client = shared.client().await?;
    // Before the order: a secret that nobody has is of no use.
    let file = arguments.secret_to.as_deref().map(|path| SecretFile::write(path, &secret)).transpose()?;
    let change = change(secret.digest());
    let answer = ordered(&client, &change).await;
    let is_of_user = !matches!(&answer, Err(error) if !error.is_unknown());
    match &file {
        Some(file) if is_of_user => file.keep()?,
        // It is nobody's secret.
        Some(file) => file.remove(),
        None => {}
    }
    if file.is_none() && is_of_user {
        answer!("{}", secret.text());
        say!("this is the secret of {}; it is not shown again", change.user());
    }
    let done = answer?;
    let behind = not_yet(&client, &|node| knows(shared, node, &secret)).await;
    show(shared, &change, &done, (&behind, arguments.secret_to.as_deref()));
    Ok(ExitCode::SUCCESS)
}

/// The nodes that do not follow the change within [`ADOPTED_TIME_MAX`], as far as they answer.
async fn not_yet<F: Future<Output = bool>>(client: &Client, is_so: &dyn Fn(Node) -> F) -> Vec<NodeId> {
    let deadline = Instant::now() + ADOPTED_TIME_MAX;
    let mut behind = client.cluster().nodes.clone();
    loop {
        let looks = futures_util::future::join_all(behind.iter().map(|node| is_so(node.clone()))).await;
        let mut looks = looks.into_iter();
        behind.retain(|_| !looks.next().unwrap_or(true));
        if behind.is_empty() || Instant::now() > deadline {
            return behind.iter().map(|node| node.id).collect();
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether a node knows the user of a secret.
async fn knows(shared: &CliContext, node: Node, secret: &Secret) -> bool {
    shared.client_of(&[node.native], Some(secret.clone())).await.is_ok()
}

/// Whether a node follows a document of this generation.
async fn goes_by(client: &Client, node: NodeId, generation: u64) -> bool {
    let report = client.report(node, Parts::STATUS).await;
    report.is_ok_and(|report| report.generation.0 >= generation)
}

async fn changed(shared: &CliContext, change: UserChange) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let done = ordered(&client, &change).await?;
    let behind = not_yet(&client, &|node| goes_by(&client, node.id, done.generation)).await;
    show(shared, &change, &done, (&behind, None));
    Ok(ExitCode::SUCCESS)
}

/// What was done, in words and as a document.
struct DoneSaid {
    generation: u64,
    text: String,
}

async fn ordered(client: &Client, change: &UserChange) -> Result<DoneSaid, CliError> {
    let order = Order::User { user: change.clone() };
    match orders::order(client, &order).await? {
        OrderOutcome::Done { done, plan, generation } => {
            Ok(DoneSaid { generation: generation.0, text: crate::words::done(&done, plan) })
        }
        answer => Err(orders::refused(client, &order, &answer).await),
    }
}

fn show(
    shared: &CliContext,
    change: &UserChange,
    done: &DoneSaid,
    (behind, secret_to): (&[NodeId], Option<&Path>),
) {
    let document = json!({
        "user": change.user(),
        "generation": done.generation,
        "secret_file": secret_to,
        "behind": behind,
    });
    let next = match change {
        UserChange::Create { .. } | UserChange::Rotate { .. } => {
            format!("; use its secret with `{} --secret-file FILE`", program())
        }
        _ => String::new(),
    };
    if !behind.is_empty() {
        say!("{} did not confirm this yet; it will when it is reached", crate::words::names(behind));
    }
    // The secret alone is on standard output, so that it can be piped.
    match (shared.format(), secret_to, change) {
        (Format::Text, None, UserChange::Create { .. } | UserChange::Rotate { .. }) => {
            say!("{}{next}", done.text);
        }
        (format, ..) => print(format, &document, || format!("{}{next}", done.text)),
    }
}

/// A secret in a file that only its owner reads. Until its order may have been carried out it has another name, so that no
/// program takes a secret that is nobody's.
struct SecretFile {
    path: PathBuf,
    beside: PathBuf,
}

impl SecretFile {
    /// Writes it under the other name.
    ///
    /// # Errors
    /// When it cannot be written, or there is a file of either name.
    fn write(path: &Path, secret: &Secret) -> Result<SecretFile, CliError> {
        let failed = || CliError::io(format!("the secret cannot be written to {}", path.display()));
        if path.try_exists().map_err(failed())? {
            return Err(failed()(std::io::ErrorKind::AlreadyExists.into()));
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".unanswered");
        let beside = PathBuf::from(name);
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&beside).map_err(|error| {
            let left = format!(
                "the secret cannot be written to {}, which an earlier command may have left before its order was answered; if \
                 its secret is no user's, remove the file",
                beside.display()
            );
            CliError::io(left)(error)
        })?;
        writeln!(file, "{}", secret.text()).and_then(|()| file.sync_all()).map_err(failed())?;
        Ok(SecretFile { path: path.to_owned(), beside })
    }

    /// Gives it its name, unless another file has it now.
    fn keep(&self) -> Result<(), CliError> {
        let named = std::fs::hard_link(&self.beside, &self.path);
        named.map_err(CliError::io(format!("the secret is good, and stays in {}", self.beside.display())))?;
        self.remove();
        Ok(())
    }

    fn remove(&self) {
        // Nobody reads it there.
        let _ = std::fs::remove_file(&self.beside);
    }
}

fn users_json(users: &Users) -> Json {
    let user = |(name, user): (&UserName, &model::access::User)| json!({ "user": name, "rights": user.grants, "secrets": user.secrets.len(), "redis_store": user.redis_store });
    users.iter().map(user).collect()
}

fn listed(users: &Users) -> String {
    if users.is_empty() {
        return format!(
            "this cluster has no users: it serves anyone who reaches it; to close it, see docs/operating/closing.md and run \
             `{} user create NAME admin`",
            program()
        );
    }
    let mut rows = vec![["user", "secrets", "redis store", "rights"].map(str::to_owned).to_vec()];
    for (name, user) in users.iter() {
        let grants: Vec<String> = user.grants.iter().map(ToString::to_string).collect();
        let store = user.redis_store.as_ref().map_or("-".to_owned(), ToString::to_string);
        rows.push(vec![name.to_string(), user.secrets.len().to_string(), store, grants.join(" ")]);
    }
    format!("{}{}", table(&rows), count(users.len() as u64, "user"))
}
