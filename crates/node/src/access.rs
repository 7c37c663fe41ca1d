//! Who may do what in a closed cluster: the one place where all doors ask.
//!
//! ```text
//!   link or connection ─▶ Caller: a node by its certificate, a user by its secret, or nobody yet
//!   each request       ─▶ Caller::judge(view, right, store, key) ─▶ go on, or a refusal as data
//! ```
//!
//! A caller is looked up again whenever the cluster document has changed. So a user that was removed, or whose secret was
//! replaced, is refused with its next request, on open connections, too. A cluster without users serves everyone,
//! and asking costs one comparison there.
//!
//! **Architecture Invariant:** no request is carried out in a closed cluster before it was judged, and no refusal names a
//! key or a secret.

use std::fmt;
use std::sync::Arc;

use model::access::{Right, SecretDigest, USER_BY_SECRET, User, UserName};
use model::{Cluster, Generation};
use parking_lot::Mutex;
use protocol::report::TlsStatus;
use runtime::Proof;
use runtime::secret::{digest_of, is_same};
use wire::error::ErrorCode;
use wire::messages::Failure;

use crate::view::CurrentView;

/// The certificate by which a node shows what it is, as it is now: its file may be written again.
pub trait Certificate: fmt::Debug + Send + Sync {
    /// When it expires, and whether connections without TLS are taken, too.
    fn status(&self) -> TlsStatus;
}

/// Who asked, as this node knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The holder of a node's certificate: a node or a headmaster.
    Node,
    /// A user, by its secret.
    User(UserName),
    /// The cluster is closed, and it has not said who it is.
    Nobody,
    /// The cluster is open.
    Anyone,
    /// Several, of whom there were too many to tell them apart.
    Others,
}

/// Who is at the other end of one connection.
#[derive(Debug)]
pub struct Caller {
    is_node: bool,
    state: Mutex<AccessState>,
}

#[derive(Debug)]
struct AccessState {
    /// The secret that was given last, as far as it was good.
    secret: Option<SecretDigest>,
    /// What the document of this generation says of it.
    generation: Generation,
    standing: CallerStanding,
}

/// What one cluster document says of a caller.
#[derive(Clone, Debug)]
enum CallerStanding {
    /// It may do everything: the cluster is open, or it is a node.
    Free,
    /// It has not said who it is.
    Nobody,
    /// Its secret is no user's any more.
    Removed,
    /// It is this user.
    User(Arc<KnownUser>),
}

/// A user, as a cluster document says.
#[derive(Clone, Debug)]
pub struct KnownUser {
    /// Its name.
    pub name: UserName,
    /// Its rights.
    pub user: User,
}

impl KnownUser {
    /// Whether the user has this right.
    ///
    /// # Errors
    /// `forbidden`, with the right that is lacking.
    pub fn judge(&self, right: Right, store: &str, key: Option<&[u8]>) -> Result<(), Failure> {
        if self.user.may(right, store, key) {
            return Ok(());
        }
        let detail = match right {
            Right::Read | Right::Write => {
                let of = if key.is_some() { "this key" } else { "all keys" };
                format!("user {} has no right to {right} {of} of store {store:?}: {right}:{store}", self.name)
            }
            Right::Scan => {
                format!("user {} has no right to walk over store {store:?}: scan:{store}", self.name)
            }
            _ => format!("user {} has not the right {right}", self.name),
        };
        Err(Failure::new(ErrorCode::Forbidden, detail))
    }
}

impl Caller {
    /// Whoever is at the other end of a connection that has proved this.
    pub fn new(proof: Proof) -> Caller {
        let state = AccessState { secret: None, generation: Generation(0), standing: CallerStanding::Nobody };
        Caller { is_node: proof == Proof::Node, state: Mutex::new(state) }
    }

    /// Whether it holds a node's certificate.
    pub fn is_node(&self) -> bool {
        self.is_node
    }

    /// Who it is, for people who look later.
    pub fn who(&self, view: &CurrentView) -> Who {
        match self.standing(view) {
            _ if self.is_node => Who::Node,
            CallerStanding::Free => Who::Anyone,
            CallerStanding::User(known) => Who::User(known.name.clone()),
            CallerStanding::Nobody | CallerStanding::Removed => Who::Nobody,
        }
    }

    /// Takes it for the user whose secret this is. With a name, it must be that user's. A secret that is nobody's leaves
    /// the caller whom it was.
    ///
    /// # Errors
    /// `unauthenticated`, which does not tell whether there is such a user.
    pub fn authenticate(
        &self,
        view: &CurrentView,
        user: &str,
        secret: &[u8],
    ) -> Result<Arc<KnownUser>, Failure> {
        let cluster = view.get().cluster().clone();
        let refused = |detail: &str| Err(Failure::new(ErrorCode::Unauthenticated, detail));
        if !cluster.is_closed() {
            return refused("this cluster has no users, so no secret is anybody's");
        }
        let digest = digest_of(secret);
        let named = |name: &UserName| user.is_empty() || user == USER_BY_SECRET || user == name.as_str();
        match found(&cluster, &digest) {
            Some(known) if named(&known.name) => {
                let standing = CallerStanding::User(known.clone());
                *self.state.lock() =
                    AccessState { secret: Some(digest), generation: cluster.generation, standing };
                Ok(known)
            }
            _ => refused("the secret is no user's, or not that of the user that was named"),
        }
    }

    /// Forgets who it was.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        (state.secret, state.generation, state.standing) = (None, Generation(0), CallerStanding::Nobody);
    }

    /// The user that it is, whose rights shall be asked for; `None` where everything is allowed.
    ///
    /// # Errors
    /// `unauthenticated` when it is no user of a closed cluster.
    pub fn user(&self, view: &CurrentView) -> Result<Option<Arc<KnownUser>>, Failure> {
        match self.standing(view) {
            CallerStanding::Free => Ok(None),
            CallerStanding::User(known) => Ok(Some(known)),
            CallerStanding::Nobody => Err(Failure::new(
                ErrorCode::Unauthenticated,
                "this cluster is closed, and the connection has given no secret",
            )),
            CallerStanding::Removed => Err(Failure::new(
                ErrorCode::Unauthenticated,
                "the user of this connection was removed, or its secret replaced",
            )),
        }
    }

    /// Whether it may do this.
    ///
    /// # Errors
    /// `unauthenticated` or `forbidden`.
    pub fn judge(
        &self,
        view: &CurrentView,
        right: Right,
        store: &str,
        key: Option<&[u8]>,
    ) -> Result<(), Failure> {
        self.user(view)?.map_or(Ok(()), |known| known.judge(right, store, key))
    }

    /// Whether it may do what only nodes may.
    ///
    /// # Errors
    /// `forbidden` where it is no node, in a closed cluster.
    pub fn judge_node(&self, view: &CurrentView, what: &str) -> Result<(), Failure> {
        match self.is_node || self.is_free(view) {
            true => Ok(()),
            false => Err(Failure::new(
                ErrorCode::Forbidden,
                format!(
                    "{what} is taken from nodes only, and this connection has shown no node's certificate"
                ),
            )),
        }
    }

    fn is_free(&self, view: &CurrentView) -> bool {
        matches!(self.standing(view), CallerStanding::Free)
    }

    fn standing(&self, view: &CurrentView) -> CallerStanding {
        if self.is_node {
            return CallerStanding::Free;
        }
        let generation = view.generation();
        let mut state = self.state.lock();
        if state.generation != generation {
            let cluster = view.get().cluster().clone();
            state.generation = cluster.generation;
            state.standing = match &state.secret {
                _ if !cluster.is_closed() => CallerStanding::Free,
                None => anyone(&cluster).map_or(CallerStanding::Nobody, CallerStanding::User),
                Some(digest) => found(&cluster, digest).map_or(CallerStanding::Removed, CallerStanding::User),
            };
        }
        state.standing.clone()
    }
}

/// What whoever gives no secret may do, if anything.
fn anyone(cluster: &Cluster) -> Option<Arc<KnownUser>> {
    let (name, user) = cluster.users.iter().find(|(name, _)| name.is_anyone())?;
    Some(Arc::new(KnownUser { name: name.clone(), user: user.clone() }))
}

/// The user whose secret this is.
fn found(cluster: &Cluster, digest: &SecretDigest) -> Option<Arc<KnownUser>> {
    let (name, user) = cluster.users.holder(|known| is_same(known, digest))?;
    Some(Arc::new(KnownUser { name: name.clone(), user: user.clone() }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::access::{Grant, UserChange};
    use model::{Node, NodeId, Ring, Zone};
    use runtime::secret::Secret;

    use super::*;
    use crate::view::View;

    fn cluster() -> Cluster {
        let node = Node::new(NodeId(1), Zone("a".to_owned()), "h1:1", None);
        let ring = Ring::equal_slices_listing(4, &[(node.id, node.zone.clone())], 1);
        Cluster::new("shop", vec![node], ring, Vec::new())
    }

    fn with(cluster: &Cluster, name: &str, secret: &Secret, grants: &[&str]) -> Cluster {
        let (user, secret) = (UserName::new(name).unwrap(), secret.digest());
        let grants: BTreeSet<Grant> = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        cluster.with_users(&UserChange::Create { user, secret, grants, redis_store: None }).unwrap()
    }

    fn take(view: &CurrentView, cluster: Cluster) {
        view.replace(View::new(Arc::new(cluster), Vec::new()));
    }

    fn code(refused: Result<(), Failure>) -> ErrorCode {
        refused.unwrap_err().code
    }

    #[test]
    fn an_open_cluster_serves_everyone_until_it_is_closed() {
        let (open, secret) = (cluster(), Secret::generate().unwrap());
        let view = CurrentView::new(View::new(Arc::new(open.clone()), Vec::new()));
        let (nobody, node) = (Caller::new(Proof::None), Caller::new(Proof::Node));
        let write = |caller: &Caller| caller.judge(&view, Right::Write, "carts", Some(b"k"));
        assert!(write(&nobody).is_ok() && nobody.judge_node(&view, "gossip").is_ok());
        let refused = nobody.authenticate(&view, "root", secret.text().as_bytes());
        assert_eq!(code(refused.map(|_| ())), ErrorCode::Unauthenticated);
        take(&view, with(&open, "root", &secret, &["admin"]));
        assert_eq!(code(write(&nobody)), ErrorCode::Unauthenticated);
        assert_eq!(code(nobody.judge_node(&view, "gossip")), ErrorCode::Forbidden);
        assert!(write(&node).is_ok() && node.judge_node(&view, "gossip").is_ok());
    }

    #[test]
    fn a_client_without_a_secret_has_public_rights_and_one_with_a_bad_secret_has_none() {
        let (root, unused) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let closed = with(&cluster(), "root", &root, &["admin"]);
        let public = with(&closed, "anyone", &unused, &["read:public"]);
        let view = CurrentView::new(View::new(Arc::new(public.clone()), Vec::new()));
        let nobody = Caller::new(Proof::None);
        assert!(nobody.judge(&view, Right::Read, "public", Some(b"k")).is_ok());
        assert_eq!(code(nobody.judge(&view, Right::Write, "public", Some(b"k"))), ErrorCode::Forbidden);
        assert_eq!(code(nobody.judge_node(&view, "gossip")), ErrorCode::Forbidden);
        assert!(nobody.authenticate(&view, "anyone", unused.text().as_bytes()).is_err(), "it has no secret");
        let user = UserName::new("anyone").unwrap();
        take(&view, public.with_users(&UserChange::Remove { user }).unwrap());
        assert_eq!(code(nobody.judge(&view, Right::Read, "public", Some(b"k"))), ErrorCode::Unauthenticated);
    }

    #[test]
    fn a_user_does_what_it_may_and_is_refused_once_it_is_removed() {
        let (root, shop) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let closed = with(&with(&cluster(), "root", &root, &["admin"]), "shop", &shop, &["read:carts/u:"]);
        let view = CurrentView::new(View::new(Arc::new(closed.clone()), Vec::new()));
        let caller = Caller::new(Proof::None);
        for (user, secret) in [("shop", &root), ("nobody", &shop)] {
            assert!(caller.authenticate(&view, user, secret.text().as_bytes()).is_err(), "{user}");
        }
        assert_eq!(caller.authenticate(&view, "", shop.text().as_bytes()).unwrap().name.as_str(), "shop");
        let read = |key: &[u8]| caller.judge(&view, Right::Read, "carts", Some(key));
        assert!(read(b"u:1").is_ok());
        let refused = read(b"secret-key").unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
        assert!(!refused.detail.contains("secret-key") && !refused.detail.contains("tontine_"));
        assert_eq!(code(caller.judge_node(&view, "gossip")), ErrorCode::Forbidden, "users are no nodes");
        // A wrong secret changes nothing.
        assert!(caller.authenticate(&view, "", b"tontine_wrong").is_err() && read(b"u:1").is_ok());
        let removed = closed.with_users(&UserChange::Remove { user: UserName::new("shop").unwrap() });
        take(&view, removed.unwrap());
        assert_eq!(code(read(b"u:1")), ErrorCode::Unauthenticated);
    }
}
