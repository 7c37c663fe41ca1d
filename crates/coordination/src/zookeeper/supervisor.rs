//! The life of one session: connecting, open, closed or lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use zookeeper_client::{Client, CreateMode, Error, SessionState, StateWatcher};

use super::SessionShared;

/// Pause after the first attempt that failed; doubled after each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Longest pause between attempts: an ensemble that is back is found within it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Where a session is in its life. It only goes forwards.
#[derive(Clone)]
pub(super) enum SessionLife {
    /// There is none yet.
    Connecting {
        /// Why not.
        reason: String,
        /// What the ensemble has answered, if somebody has to mend something before there can be one.
        refused: Option<SessionRefusal>,
    },
    /// There is one; it may be without connection for a while.
    Open {
        /// What carries out calls.
        client: Client,
    },
    /// It is being closed.
    Closing,
    /// There is none any more.
    Ended {
        /// How it ended.
        ending: Ending,
    },
}

/// Why an ensemble that answers gives no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRefusal {
    /// The chroot does not exist. Whoever creates the cluster creates it.
    NoChroot,
    /// The credentials, or what they may do.
    Denied,
}

/// How a session ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// It was closed, or never begun: it has no ephemeral documents.
    Closed,
    /// The ensemble ended it, or did not answer for so long that it will.
    Lost,
    /// It was to be closed, and the ensemble did not answer: its ephemeral documents go when it expires.
    Unconfirmed {
        /// What failed.
        reason: String,
    },
}

/// Opens the session, follows it to its end, and closes it when told to.
pub(super) async fn run(
    shared: &SessionShared,
    state: &watch::Sender<SessionLife>,
    mut stopped: watch::Receiver<bool>,
) {
    // The session's last reference says so before it goes.
    let mut stop = std::pin::pin!(async move { drop(stopped.wait_for(|stopped| *stopped).await) });
    let client = tokio::select! {
        biased;
        () = &mut stop => {
            state.send_replace(SessionLife::Ended { ending: Ending::Closed });
            return;
        }
        client = connect(shared, state) => client,
    };
    let watcher = client.state_watcher();
    shared.id.store(client.session_id().0.cast_unsigned(), Ordering::Release);
    let timeout = client.session_timeout();
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    shared.session_timeout_ms.store(timeout_ms, Ordering::Release);
    tracing::info!(
        session = %client.session_id(),
        timeout_ms,
        ensemble = %shared.options.address,
        "coordination session opened"
    );
    state.send_replace(SessionLife::Open { client: client.clone() });
    let ending = tokio::select! {
        biased;
        ended = follow(shared, watcher.clone(), client.clone()) => {
            tracing::warn!(ensemble = %shared.options.address, reason = ?ended, "coordination session lost");
            Ending::Lost
        }
        () = &mut stop => {
            state.send_replace(SessionLife::Closing);
            close(client, watcher, timeout).await
        }
    };
    state.send_replace(SessionLife::Ended { ending });
}

/// Tries until there is a session whose chroot exists.
async fn connect(shared: &SessionShared, state: &watch::Sender<SessionLife>) -> Client {
    let mut pause = PAUSE_MIN;
    loop {
        match attempt(shared).await {
            Ok(client) => {
                // The chroot may be created yet. Meanwhile one session is enough.
                while !client.state().is_terminated() {
                    match enter(shared, client.clone()).await {
                        Ok(client) => return client,
                        Err((reason, refused)) => note(state, reason, refused),
                    }
                    tokio::time::sleep(PAUSE_MAX).await;
                }
            }
            Err((reason, refused)) => note(state, reason, refused),
        }
        tokio::time::sleep(pause).await;
        pause = PAUSE_MAX.min(2 * pause);
    }
}

/// Says why there is no session, to callers and in the log.
fn note(state: &watch::Sender<SessionLife>, reason: String, refused: Option<SessionRefusal>) {
    state.send_if_modified(|state| {
        let news = !matches!(state, SessionLife::Connecting { reason: before, .. } if *before == reason);
        if news {
            tracing::warn!(reason, "no coordination session yet");
            *state = SessionLife::Connecting { reason, refused };
        }
        news
    });
}

/// Tries each server once. Failing, says why, and what the ensemble refused.
async fn attempt(shared: &SessionShared) -> Result<Client, (String, Option<SessionRefusal>)> {
    let address = &shared.options.address;
    let mut connector =
        Client::connector().with_session_timeout(shared.options.session_timeout).with_fail_eagerly();
    if let Some(credentials) = &shared.options.credentials {
        connector = connector.with_auth("digest", credentials.as_bytes());
    }
    connector.connect(&address.servers.join(",")).await.map_err(|error| match error {
        Error::AuthFailed => (format!("{address} refused the credentials"), Some(SessionRefusal::Denied)),
        Error::NoHosts | Error::Timeout => (format!("no server of {address} opened a session"), None),
        error => (format!("cannot open a session with {address}: {error}"), None),
    })
}

/// Takes the chroot for the root. Failing, says why, and what somebody has to mend.
async fn enter(shared: &SessionShared, client: Client) -> Result<Client, (String, Option<SessionRefusal>)> {
    let address = &shared.options.address;
    if address.chroot.is_root() {
        return Ok(client);
    }
    let chroot = address.chroot.as_str();
    let limit = shared.options.session_timeout;
    if shared.options.create_chroot {
        let persistent = CreateMode::Persistent.with_acls(shared.acls());
        let made = tokio::time::timeout(limit, client.mkdir(chroot, &persistent)).await;
        if let Err(error) = made.unwrap_or(Err(Error::Timeout)) {
            return Err((format!("cannot create the chroot of {address}: {error}"), denied(&error)));
        }
    } else {
        let found = tokio::time::timeout(limit, client.check_stat(chroot)).await;
        let failed =
            |error: Error| (format!("cannot look at the chroot of {address}: {error}"), denied(&error));
        if found.unwrap_or(Err(Error::Timeout)).map_err(failed)?.is_none() {
            let reason = format!(
                "the chroot of {address} does not exist; correct the address, import the documents of a cluster that was there, \
                 or create a new one"
            );
            return Err((reason, Some(SessionRefusal::NoChroot)));
        }
    }
    client
        .chroot(chroot)
        .map_err(|_| (format!("the client refuses the chroot of {address}"), Some(SessionRefusal::Denied)))
}

/// Whether the ensemble has refused: then trying again does not help.
fn denied(error: &Error) -> Option<SessionRefusal> {
    matches!(error, Error::NoAuth | Error::AuthFailed).then_some(SessionRefusal::Denied)
}

/// Waits for the end of an open session.
async fn follow(shared: &SessionShared, mut watcher: StateWatcher, client: Client) -> SessionState {
    let mut now = client.state();
    // From here on, this keeps no session open whose last user is gone.
    drop(client);
    while !now.is_terminated() {
        now = watcher.changed().await;
        match now {
            SessionState::Disconnected => {
                tracing::warn!(ensemble = %shared.options.address, "coordination connection lost");
            }
            SessionState::SyncConnected => {
                tracing::info!(ensemble = %shared.options.address, "coordination connection restored");
            }
            _ => {}
        }
    }
    now
}

/// Closes a session: the ensemble is told once nobody has a part of the client any more.
async fn close(client: Client, mut watcher: StateWatcher, limit: Duration) -> Ending {
    let mut now = client.state();
    drop(client);
    let closing = async {
        while !now.is_terminated() {
            now = watcher.changed().await;
        }
        now
    };
    match tokio::time::timeout(limit, closing).await {
        Ok(SessionState::Closed) => Ending::Closed,
        Ok(_) => Ending::Lost,
        Err(_) => {
            let reason = format!("the ensemble did not confirm the session's end within {limit:?}");
            tracing::warn!(reason, "coordination session not closed");
            Ending::Unconfirmed { reason }
        }
    }
}
