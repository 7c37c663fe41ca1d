//! Commands on keys: put, get, delete, mget, siblings, resolve, route.

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use ::bytes::{Bytes, BytesMut};
use client::{DeleteOptions, Found, PutOptions, StoreHandle};
use model::{ArtifactNumber, Context, Key, Store, Value, Version, WallMillis};
use protocol::quorum::can_be_met;
use serde_json::{Value as Json, json};
use wire::messages::{Condition, RequestOptions, Written};
use wire::versions::{decode_context, encode_context};

use crate::context::CliContext;
use crate::durations;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{Format, bytes_json, count, hex, moment, shown, table, unhex};

/// A key and its value.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine put greeting hello
  tontine put logo - < logo.png                   read the value from standard input
  tontine put session:7 alive --ttl 30m           expires after half an hour
  tontine put -s siblings cart milk --context C   C is what `tontine siblings -s siblings cart` printed
  tontine put -- -key -value                      for keys and values that begin with a dash")]
pub struct PutArguments {
    /// The key: 1 to 4096 bytes.
    pub key: String,
    /// The value, at most 16 MiB unless the store has another limit; `-` reads it from standard input.
    pub value: String,
    /// Context from an earlier get or put: replace exactly what that one saw. An empty context replaces nothing and adds
    /// a sibling. Without a context, the put replaces every version that its coordinator knows.
    #[arg(long)]
    pub context: Option<String>,
    /// How long the value lives, at least 1ms; by default it never expires.
    #[arg(long, value_name = "DURATION", value_parser = time_to_live, allow_hyphen_values = true)]
    pub ttl: Option<Duration>,
    /// Write only if the store's R replicas hold no value of the key; otherwise exit with 1.
    #[arg(long, conflicts_with = "if_present")]
    pub if_absent: bool,
    /// Write only if the store's R replicas hold a value of the key; otherwise exit with 1.
    #[arg(long)]
    pub if_present: bool,
    /// How many replicas must acknowledge the put, from 1 to the store's N; the store's W by default.
    #[arg(long, short = 'w', value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..))]
    pub writes: Option<u8>,
}

/// Longest life of a value: a hundred years. More is a mistake, or means for ever.
const TTL_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

fn time_to_live(text: &str) -> Result<Duration, String> {
    let refused = "a TTL is 1ms to 100 years, for example 500ms, 30s, 10m, 1h30m or 7d; for a value that never expires, \
                   leave out --ttl";
    let lives = durations::parse(text).ok();
    lives.filter(|ttl| (Duration::from_millis(1)..=TTL_MAX).contains(ttl)).ok_or_else(|| refused.to_owned())
}

/// One key.
#[derive(Clone, Debug, clap::Args)]
pub struct SiblingsArguments {
    /// The key.
    pub key: String,
    /// How many replicas must answer, from 1 to the store's N; the store's R by default.
    #[arg(long, short = 'r', value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..))]
    pub reads: Option<u8>,
}

/// One key, and how its value is shown.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine get greeting
  tontine get logo --raw > logo.png    exactly the value's bytes
  tontine get greeting -r 3            wait for three replicas")]
pub struct GetArguments {
    /// Which key.
    #[command(flatten)]
    pub one: SiblingsArguments,
    /// Write only the bytes of the value to standard output, without a line end. Fails if the key has siblings, because
    /// it then has no single value.
    #[arg(long)]
    pub raw: bool,
    /// Read this artifact of a read-only store, whether it is served or not; `tontine artifact list` shows the numbers.
    #[arg(long, value_name = "NUMBER")]
    pub artifact: Option<u64>,
}

/// Some keys.
#[derive(Clone, Debug, clap::Args)]
pub struct KeysArguments {
    /// The keys, each of 1 to 4096 bytes.
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
}

/// Some keys, and where they are read.
#[derive(Clone, Debug, clap::Args)]
pub struct MgetArguments {
    /// Which keys.
    #[command(flatten)]
    pub keys: KeysArguments,
    /// Read this artifact of a read-only store, whether it is served or not; `tontine artifact list` shows the numbers.
    #[arg(long, value_name = "NUMBER")]
    pub artifact: Option<u64>,
}

/// Keys to delete.
#[derive(Clone, Debug, clap::Args)]
pub struct DeleteArguments {
    /// The keys, each of 1 to 4096 bytes.
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
    /// Context from an earlier get: delete exactly what that get saw. Takes a single key.
    #[arg(long)]
    pub context: Option<String>,
}

/// How siblings become one.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine resolve -s siblings cart --lines          merge lists that have one entry on each line
  tontine resolve -s siblings cart --value 'milk'   replace the siblings, whatever they are")]
pub struct ResolveArguments {
    /// The key.
    pub key: String,
    /// Replace the siblings with this value; `-` reads it from standard input.
    #[arg(long, conflicts_with = "lines")]
    pub value: Option<String>,
    /// Replace the siblings with the sorted union of their lines.
    #[arg(long)]
    pub lines: bool,
}

async fn open(shared: &CliContext) -> Result<StoreHandle, CliError> {
    Ok(shared.client().await?.store(&shared.store)?)
}

/// The store, for a request that asks for `required` answers by the option `option`.
async fn open_for(shared: &CliContext, option: &str, required: Option<u8>) -> Result<StoreHandle, CliError> {
    let client = shared.client().await?;
    let handle = client.store(&shared.store)?;
    let cluster = client.cluster();
    let definition = cluster.definition(&shared.store).expect("the store was found above");
    match required {
        Some(required) if !can_be_met(required, &definition) => Err(CliError::Usage(format!(
            "{option} {required} requires too many replicas: store {} keeps {} of each key",
            shared.store, definition.consistency.replicas
        ))),
        _ => Ok(handle),
    }
}

fn value_of(text: &str) -> Result<Bytes, CliError> {
    if text != "-" {
        return Ok(Bytes::copy_from_slice(text.as_bytes()));
    }
    let mut value = Vec::new();
    std::io::stdin().read_to_end(&mut value).map_err(CliError::io("cannot read standard input"))?;
    Ok(value.into())
}

fn show_context(context: &Context) -> String {
    let mut bytes = BytesMut::new();
    encode_context(context, &mut bytes);
    hex(&bytes)
}

/// An empty text is the context of somebody who has seen nothing.
fn parse_context(text: &str) -> Result<Context, CliError> {
    if text.is_empty() {
        return Ok(Context::default());
    }
    unhex(text).and_then(|bytes| decode_context(&bytes.into()).ok()).ok_or_else(|| {
        CliError::Usage(
            "the context is not valid; copy all of the context that `tontine get` printed".to_owned(),
        )
    })
}

/// `tontine put`.
pub(crate) async fn put(shared: CliContext, arguments: PutArguments) -> Result<ExitCode, CliError> {
    let store = open_for(&shared, "-w", arguments.writes).await?;
    let condition = match (arguments.if_absent, arguments.if_present) {
        (true, _) => Condition::IfAbsent,
        (_, true) => Condition::IfPresent,
        _ => Condition::None,
    };
    let options = PutOptions {
        context: arguments.context.as_deref().map(parse_context).transpose()?,
        ttl: arguments.ttl,
        condition,
        request: RequestOptions { required: arguments.writes, ..RequestOptions::default() },
    };
    let value = value_of(&arguments.value)?;
    match store.put(arguments.key.clone(), value, options).await {
        Ok(written) => {
            print(shared.format(), &written_json(&arguments.key, &written), || "done".to_owned());
            Ok(ExitCode::SUCCESS)
        }
        Err(client::ClientError::Failed { code: wire::ErrorCode::ConditionFailed, detail }) => {
            print(
                shared.format(),
                &json!({ "key": arguments.key, "written": false, "reason": detail }),
                || format!("not written: {detail}"),
            );
            Ok(ExitCode::from(1))
        }
        Err(error @ client::ClientError::Failed { code: wire::ErrorCode::KeyUnfit, .. }) => {
            Err(CliError::OfKey { key: arguments.key, error })
        }
        Err(error) => Err(error.into()),
    }
}

fn written_json(key: &str, written: &Written) -> Json {
    json!({
        "key": key,
        "written": true,
        "dot": written.dot.to_string(),
        "acks": written.acks,
        "sloppy": written.sloppy,
        "context": show_context(&written.context),
    })
}

/// The store, or one artifact of it.
fn of_artifact(store: StoreHandle, artifact: Option<u64>) -> Result<StoreHandle, CliError> {
    match artifact {
        None => Ok(store),
        Some(number) => Ok(store.of_artifact(ArtifactNumber(number))?),
    }
}

async fn read(
    shared: &CliContext,
    arguments: &SiblingsArguments,
    artifact: Option<u64>,
) -> Result<Found, CliError> {
    let options = RequestOptions { required: arguments.reads, ..RequestOptions::default() };
    let store = of_artifact(open_for(shared, "-r", arguments.reads).await?, artifact)?;
    let found = store.get_with(arguments.key.clone(), &options).await?;
    if found.is_sloppy() && shared.format() == Format::Text {
        say!("note: too few replicas of the key answered, so this value may be older than its last write");
    }
    Ok(found)
}

/// `tontine get`.
pub(crate) async fn get(shared: CliContext, arguments: GetArguments) -> Result<ExitCode, CliError> {
    if arguments.raw {
        return get_raw(&shared, &arguments).await;
    }
    let found = read(&shared, &arguments.one, arguments.artifact).await?;
    let arguments = arguments.one;
    let values: Vec<&Bytes> = found.values().collect();
    let document = found_json(&arguments.key, &found);
    match values.as_slice() {
        [] => {
            print(shared.format(), &document, || format!("{}: not found", arguments.key));
            return Ok(ExitCode::from(1));
        }
        [value] if shared.format() == Format::Text => {
            use std::io::Write;
            let mut stdout = crate::output::Stdout;
            // What cannot be written is told at the end.
            let _ = stdout.write_all(value).and_then(|()| stdout.write_all(b"\n"));
            if let Some(left) = ttl(&found) {
                say!("expires in {}", durations::rough(left));
            }
        }
        siblings => print(shared.format(), &document, || {
            let mut text = format!("{} siblings (concurrent writes):\n", siblings.len());
            let mut rows = vec![["", "TTL", "VALUE"].map(str::to_owned).to_vec()];
            let live = found.versions().iter().filter(|version| version.live(found.now()).is_some());
            for ((number, value), version) in siblings.iter().enumerate().zip(live) {
                let left =
                    version.expires.map(|at| Duration::from_millis(at.0.saturating_sub(found.now().0)));
                rows.push(vec![(number + 1).to_string(), ttl_cell(left), shown(value)]);
            }
            text.push_str(&table(&rows));
            let context = show_context(&found.context());
            text.push_str(&format!("context {context}\n"));
            text.push_str(&format!(
                "merge them with\n  {} -s {} put {:?} VALUE --context {context}",
                crate::output::program(),
                shared.store,
                arguments.key
            ));
            text
        }),
    }
    Ok(ExitCode::SUCCESS)
}

/// The value's bytes, or nothing.
async fn get_raw(shared: &CliContext, arguments: &GetArguments) -> Result<ExitCode, CliError> {
    use std::io::Write;
    if shared.format() == Format::Json {
        return Err(CliError::Usage("--raw and -o json cannot be combined".to_owned()));
    }
    let found = read(shared, &arguments.one, arguments.artifact).await?;
    let arguments = &arguments.one;
    let values: Vec<&Bytes> = found.values().collect();
    match values.as_slice() {
        [] => {
            say!("tontine: {}: not found", arguments.key);
            Ok(ExitCode::from(1))
        }
        [value] => {
            let mut stdout = crate::output::Stdout;
            // A disk that is full must not leave half a value and a success.
            stdout
                .write_all(value)
                .and_then(|()| stdout.flush())
                .map_err(CliError::io("cannot write the value to standard output"))?;
            Ok(ExitCode::SUCCESS)
        }
        siblings => Err(CliError::Other(format!(
            "{key} has {} siblings, so it has no single value; show them with `tontine siblings {key}`, or merge them with \
             `tontine resolve {key}`",
            siblings.len(),
            key = arguments.key
        ))),
    }
}

fn found_json(key: &str, found: &Found) -> Json {
    let values: Vec<Json> = found.values().map(|value| bytes_json(value)).collect();
    json!({
        "key": key,
        "found": !values.is_empty(),
        "value": found.value().map(|value| bytes_json(&value)),
        "siblings": values,
        "expires_ms": expires(found).map(|at| at.0),
        "ttl_ms": ttl(found).map(|left| left.as_millis() as u64),
        "context": show_context(&found.context()),
        "replicas_answered": found.replicas_answered(),
        "sloppy": found.is_sloppy(),
    })
}

/// When the value expires, if there is one and it does.
fn expires(found: &Found) -> Option<WallMillis> {
    found.set().winner().filter(|winner| winner.live(found.now()).is_some())?.expires
}

/// How long the value still lives, if there is one and it expires.
fn ttl(found: &Found) -> Option<Duration> {
    expires(found).map(|at| Duration::from_millis(at.0.saturating_sub(found.now().0)))
}

/// How long a value still lives, for a table.
fn ttl_cell(left: Option<Duration>) -> String {
    left.map_or_else(|| "-".to_owned(), durations::rough)
}

/// Tells people how many of several values may be older than the last write of their key.
pub(crate) fn tell_stale<'a>(shared: &CliContext, found: impl Iterator<Item = &'a Found>) {
    let stale = found.filter(|found| found.is_sloppy()).count();
    if stale > 0 && shared.format() == Format::Text {
        say!(
            "note: too few replicas of {stale} of these keys answered, so their values may be older than their last write"
        );
    }
}

/// `tontine mget`.
pub(crate) async fn mget(shared: CliContext, arguments: MgetArguments) -> Result<ExitCode, CliError> {
    let store = of_artifact(open(&shared).await?, arguments.artifact)?;
    let keys = arguments.keys.keys;
    let results = store.multi_get(keys.clone(), &RequestOptions::default()).await?;
    let mut documents = Vec::new();
    let mut rows = vec![["KEY", "TTL", "VALUE"].map(str::to_owned).to_vec()];
    let (mut missing, mut failed) = (false, None);
    tell_stale(&shared, results.iter().flatten());
    for (key, result) in keys.iter().zip(results) {
        let found = match result {
            Ok(found) => found,
            Err(error) => {
                let error = CliError::OfKey { key: key.clone(), error };
                rows.push(vec![key.clone(), "-".to_owned(), "(failed)".to_owned()]);
                documents.push(json!({ "key": key, "error": error.json()["error"] }));
                failed = failed.or(Some(error));
                continue;
            }
        };
        let values: Vec<String> = found.values().map(|value| shown(value)).collect();
        missing |= values.is_empty();
        rows.push(vec![
            key.clone(),
            ttl_cell(ttl(&found)),
            if values.is_empty() { "(not found)".to_owned() } else { values.join(" | ") },
        ]);
        documents.push(found_json(key, &found));
    }
    print(shared.format(), &json!(documents), || table(&rows));
    match failed {
        Some(error) => Err(error),
        None => Ok(if missing { ExitCode::from(1) } else { ExitCode::SUCCESS }),
    }
}

/// `tontine delete`.
pub(crate) async fn delete(shared: CliContext, arguments: DeleteArguments) -> Result<ExitCode, CliError> {
    let store = open(&shared).await?;
    let context = arguments.context.as_deref().map(parse_context).transpose()?;
    if context.is_some() && arguments.keys.len() > 1 {
        return Err(CliError::Usage(
            "--context applies to a single key; delete the other keys without it".to_owned(),
        ));
    }
    let options = DeleteOptions { context, ..DeleteOptions::default() };
    let mut documents = Vec::new();
    let mut failed = None;
    for key in &arguments.keys {
        match store.delete(key.clone(), options.clone()).await {
            Ok(written) => documents.push(written_json(key, &written)),
            Err(error) => {
                let error = CliError::OfKey { key: key.clone(), error };
                documents.push(json!({ "key": key, "written": false, "error": error.json()["error"] }));
                // An unknown outcome says less than a failure, so it is the one to report.
                if failed.as_ref().is_none_or(|so_far: &CliError| error.exit_code() > so_far.exit_code()) {
                    failed = Some(error);
                }
            }
        }
    }
    let all_failed = documents.iter().all(|document| document["written"] == false);
    if shared.format() == Format::Json || !all_failed {
        let done = documents.iter().filter(|document| document["written"] == true).count();
        print(shared.format(), &json!(documents), || match failed {
            None => "done".to_owned(),
            Some(_) => format!("deleted {done} of {}", count(arguments.keys.len() as u64, "key")),
        });
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// `tontine siblings`.
pub(crate) async fn siblings(shared: CliContext, arguments: SiblingsArguments) -> Result<ExitCode, CliError> {
    let found = read(&shared, &arguments, None).await?;
    let now = found.now();
    let versions: Vec<Json> = found.versions().iter().map(|version| version_json(version, now)).collect();
    let document = json!({
        "key": arguments.key,
        "versions": versions,
        "context": show_context(&found.context()),
    });
    print(shared.format(), &document, || {
        if found.versions().is_empty() {
            return format!("{}: never written, or deleted and its tombstone removed", arguments.key);
        }
        let heading = ["DOT", "WRITTEN", "EXPIRES", "VALUE"].map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = std::iter::once(heading)
            .chain(found.versions().iter().map(|version| {
                let value = match (version.live(now), &version.value) {
                    (Some(bytes), _) => shown(bytes),
                    (None, Value::Present(_)) => "(expired)".to_owned(),
                    (None, Value::Tombstone) => "(deleted)".to_owned(),
                };
                let expires = version.expires.map_or("-".to_owned(), |at| moment(at.0));
                vec![version.dot.to_string(), moment(version.timestamp.wall().0), expires, value]
            }))
            .collect();
        format!("{}context {}", table(&rows), show_context(&found.context()))
    });
    Ok(if found.versions().is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn version_json(version: &Version, now: WallMillis) -> Json {
    json!({
        "dot": version.dot.to_string(),
        "written_ms": version.timestamp.wall().0,
        "expires_ms": version.expires.map(|at| at.0),
        "deleted": version.value == Value::Tombstone,
        "expired": version.live(now).is_none() && version.value != Value::Tombstone,
        "value": version.live(now).map_or(Json::Null, |bytes| bytes_json(bytes)),
    })
}

/// `tontine resolve`.
pub(crate) async fn resolve(shared: CliContext, arguments: ResolveArguments) -> Result<ExitCode, CliError> {
    let store = open(&shared).await?;
    let fixed = arguments.value.as_deref().map(value_of).transpose()?;
    if fixed.is_none() && !arguments.lines {
        return Err(CliError::Usage(
            "choose how to merge the siblings: --value VALUE, or --lines for the union of their lines"
                .to_owned(),
        ));
    }
    let merge = |values: &[Bytes]| fixed.clone().unwrap_or_else(|| union_of_lines(values));
    let found = store.resolve(arguments.key.clone(), merge).await?;
    let mut document = found_json(&arguments.key, &found);
    document["written"] = json!(found.is_merged());
    print(shared.format(), &document, || match found.value() {
        Some(value) if found.is_merged() => format!("merged into one value: {}", shown(&value)),
        Some(value) => format!("nothing to merge; the only value is: {}", shown(&value)),
        None => format!("{}: not found", arguments.key),
    });
    Ok(if found.value().is_some() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn union_of_lines(values: &[Bytes]) -> Bytes {
    let lines: std::collections::BTreeSet<&[u8]> =
        values.iter().flat_map(|value| value.split(|&byte| byte == b'\n')).collect();
    lines.into_iter().collect::<Vec<_>>().join(&b'\n').into()
}

/// Where a key lies in a store that keeps windows; null in others, and for a key that does not fit.
fn window(store: &Store, key: &[u8]) -> Json {
    let Some((windows, parts)) = store.placement.windows().and_then(|all| Some((all, all.parts(key)?)))
    else {
        return Json::Null;
    };
    let number = windows.window(parts.sequence);
    json!({
        "group": bytes_json(parts.group),
        "sequence": parts.sequence,
        "number": number,
        "bucket": windows.bucket(parts.group, number),
    })
}

/// The token of a key, and where it lies in a store that keeps windows.
fn placed(store: &Store, key: &[u8]) -> String {
    let token = store.token(key).0;
    let Some(windows) = store.placement.windows() else { return format!("{token:016x}") };
    let Some(parts) = windows.parts(key) else { return "(the key does not fit)".to_owned() };
    let group = match windows.key.has_group() {
        true => format!("group {}, ", shown(parts.group)),
        false => String::new(),
    };
    let number = windows.window(parts.sequence);
    format!("{token:016x} ({group}window {number}, bucket {})", windows.bucket(parts.group, number))
}

/// `tontine route`.
pub(crate) async fn route(shared: CliContext, arguments: KeysArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.cluster();
    client.store(&shared.store)?;
    let store = &*cluster.definition(&shared.store).expect("the store was found above");
    let mut documents = Vec::new();
    let order = json!(store.fallbacks);
    let fallbacks_title = format!("FALLBACKS ({})", order.as_str().unwrap_or_default());
    let titles = ["KEY", "TOKEN", "PARTITION", "REPLICAS", &fallbacks_title];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for key in &arguments.keys {
        let key = Key::new(key.clone()).map_err(client::ClientError::from)?;
        let token = store.token(key.as_bytes());
        let (partition, preference) = cluster.route(store, token);
        let names = |nodes: &[model::NodeId]| -> Vec<String> {
            nodes
                .iter()
                .map(|id| cluster.node(*id).map_or(id.to_string(), |n| format!("{id} {}", n.native)))
                .collect()
        };
        let (replicas, fallbacks) = (names(preference.replicas()), names(preference.fallbacks()));
        let step = model::routing::step(store, partition);
        // Of a partition that moves the whole next list; of a store that changes, its next replicas.
        let listed = partition.coming.as_ref().map(|coming| &coming.nodes[..]);
        let coming = listed.or_else(|| model::routing::replicas_to_come(store, partition));
        documents.push(json!({
            "key": bytes_json(key.as_bytes()),
            "window": window(store, key.as_bytes()),
            "token": format!("{:016x}", token.0),
            "partition": partition.id,
            "generation": cluster.generation,
            "replicas": preference.replicas(),
            "fallbacks": preference.fallbacks(),
            "fallback_order": order,
            "step": step,
            "coming": coming,
        }));
        let moves = step.zip(coming).map(|(step, coming)| {
            let nodes: Vec<String> = coming.iter().map(model::NodeId::to_string).collect();
            format!(" ({step} to {})", nodes.join(" "))
        });
        rows.push(vec![
            shown(key.as_bytes()),
            placed(store, key.as_bytes()),
            format!("{}{}", partition.id, moves.unwrap_or_default()),
            replicas.join(", "),
            if fallbacks.is_empty() { "(none)".to_owned() } else { fallbacks.join(", ") },
        ]);
    }
    print(shared.format(), &json!(documents), || table(&rows));
    Ok(ExitCode::SUCCESS)
}
