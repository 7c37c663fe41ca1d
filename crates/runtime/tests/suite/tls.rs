//! Links and streams over TLS: who is let in, who is told what, and certificates that change.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use runtime::network::bytes::listen_safely;
use runtime::network::stream::{Handshakes, Safety};
use runtime::network::tcp::{Dialing, TcpNetwork};
use runtime::network::tls::{Tls, TlsFiles};
use runtime::{Link, Listener, Network, NetworkError, Proof};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ANY: &str = "127.0.0.1:0";

/// An authority that makes certificates into files of a directory.
struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let (directory, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        std::fs::write(directory.path().join("authority"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { directory, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a certificate for 127.0.0.1 that ends in this year.
    fn certify(&self, name: &str, until: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(name), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn files(&self, own: Option<&str>) -> TlsFiles {
        let own = own.map(|name| (self.path(name), self.path(&format!("{name}.key"))));
        TlsFiles { authority: self.path("authority"), own }
    }

    fn tls(&self, own: Option<&str>) -> Arc<dyn Handshakes> {
        Tls::read(self.files(own)).unwrap()
    }

    /// With a certificate `n1`.
    fn ready() -> Authority {
        let authority = Authority::new();
        authority.certify("n1", 4000);
        authority
    }
}

fn listen(safety: &Safety) -> (Box<dyn Listener>, String) {
    let listener = TcpNetwork::new().listen_safely(ANY, 1, safety).unwrap().remove(0);
    let address = listener.address();
    (listener, address)
}

/// Both ends of a link, or why there is none.
async fn open(
    listener: &mut dyn Listener,
    dialing: Dialing,
    address: &str,
) -> (Result<Link, NetworkError>, Option<Link>) {
    let network = TcpNetwork::dialing(dialing);
    let accepting =
        async { tokio::time::timeout(Duration::from_secs(2), listener.accept()).await.ok()?.ok() };
    tokio::join!(network.connect(address), accepting)
}

/// Frames go both ways, small ones and one of a megabyte.
async fn talk(near: &mut Link, far: &mut Link) {
    for size in [1, 100, 1 << 20, 3] {
        let body = vec![size as u8; size];
        near.sender.send(&mut |out| out.extend_from_slice(&body)).unwrap();
        assert!(far.receiver.receive().await.unwrap().unwrap() == body);
        far.sender.send(&mut |out| out.extend_from_slice(&body)).unwrap();
        assert!(near.receiver.receive().await.unwrap().unwrap() == body);
    }
}

fn reason(refused: Result<Link, NetworkError>) -> String {
    refused.map(|_| ()).unwrap_err().to_string()
}

#[tokio::test]
async fn a_node_proves_that_it_is_one_and_a_client_proves_nothing() {
    let authority = Authority::ready();
    let safety = Safety::Require(authority.tls(Some("n1")));
    let (mut listener, address) = listen(&safety);
    for (own, proof) in [(Some("n1"), Proof::Node), (None, Proof::None)] {
        let dialing = Dialing::AsAddressed(authority.tls(own));
        let (near, far) = open(&mut *listener, dialing, &format!("tls://{address}")).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        assert_eq!(far.proof, proof);
        talk(&mut near, &mut far).await;
        drop(near);
        assert!(far.receiver.receive().await.unwrap().is_none(), "it was closed cleanly");
    }
}

#[tokio::test]
async fn one_port_takes_both_while_a_cluster_is_turned_over() {
    let authority = Authority::ready();
    let (mut listener, address) = listen(&Safety::Accept(authority.tls(Some("n1"))));
    for dialing in [Dialing::Plain, Dialing::Tls(authority.tls(None))] {
        let (near, far) = open(&mut *listener, dialing, &address).await;
        talk(&mut near.unwrap(), &mut far.unwrap()).await;
    }
}

#[tokio::test]
async fn mixing_up_plain_and_tls_is_explained() {
    let authority = Authority::ready();
    let (mut requires, address) = listen(&Safety::Require(authority.tls(Some("n1"))));
    let (refused, far) = open(&mut *requires, Dialing::Plain, &address).await;
    let said = reason(refused);
    assert!(said.contains("takes no connection without TLS") && far.is_none(), "{said}");

    let (mut plain, address) = listen(&Safety::Plain);
    let dialing = Dialing::Tls(authority.tls(None));
    let (refused, far) = open(&mut *plain, dialing, &address).await;
    let said = reason(refused);
    assert!(said.starts_with(&format!("no TLS with {address}")) && far.is_none(), "{said}");

    // An address that wants TLS is never called without.
    let (refused, _) = open(&mut *plain, Dialing::Plain, &format!("tls://{address}")).await;
    assert!(reason(refused).contains("it is called with TLS"), "and nothing was sent");

    let safety = Safety::Require(authority.tls(Some("n1")));
    let mut redis = listen_safely(ANY, 1, &safety, false).unwrap().remove(0);
    let mut client = tokio::net::TcpStream::connect(redis.address()).await.unwrap();
    client.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
    let (refused, mut said) = (redis.accept().await, String::new());
    assert!(matches!(refused, Err(NetworkError::Foreign { .. })));
    client.read_to_string(&mut said).await.unwrap();
    assert!(said.starts_with("-TLS this port takes no connection without TLS"), "{said}");

    // An HTTP client is told in HTTP, at its own port and at the others.
    for (http, sent) in [(true, &b"BREW /coffee HTTP/1.1\r\n\r\n"[..]), (false, b"GET / HTTP/1.1\r\n\r\n")] {
        let mut port = listen_safely(ANY, 1, &safety, http).unwrap().remove(0);
        let mut client = tokio::net::TcpStream::connect(port.address()).await.unwrap();
        client.write_all(sent).await.unwrap();
        let (refused, mut said) = (port.accept().await, String::new());
        assert!(matches!(refused, Err(NetworkError::Foreign { .. })));
        client.read_to_string(&mut said).await.unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 "), "{said}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{said}");
        assert!(body.contains("begin the address with https:"), "{said}");
    }
}

#[tokio::test]
async fn certificates_of_others_and_of_yesterday_are_refused_on_both_sides() {
    let (authority, stranger) = (Authority::ready(), Authority::ready());
    authority.certify("late", 2002);
    let (mut listener, address) = listen(&Safety::Require(authority.tls(Some("n1"))));
    // A client that trusts another authority.
    let said = reason(open(&mut *listener, Dialing::Tls(stranger.tls(None)), &address).await.0);
    assert!(said.contains("invalid peer certificate"), "{said}");
    // A program that shows a certificate of another authority, or one that has expired, is no node, and no client either.
    let mixed = |own: &Authority, name: &str| {
        let files = TlsFiles { authority: authority.path("authority"), ..own.files(Some(name)) };
        Dialing::Tls(Tls::read(files).unwrap() as Arc<dyn Handshakes>)
    };
    for (dialing, expected) in [(mixed(&stranger, "n1"), "alert"), (mixed(&authority, "late"), "xpired")] {
        let (refused, far) = open(&mut *listener, dialing, &address).await;
        let said = reason(refused);
        assert!(said.contains(expected) && far.is_none(), "{said}");
    }
    let (mut late, address) = listen(&Safety::Require(authority.tls(Some("late"))));
    let said = reason(open(&mut *late, Dialing::Tls(authority.tls(None)), &address).await.0);
    assert!(said.contains("certificate expired"), "{said}");
    // And one of another machine.
    let (mut listener, address) = listen(&Safety::Require(authority.tls(Some("n1"))));
    let other = address.replace("127.0.0.1", "localhost");
    let said = reason(open(&mut *listener, Dialing::Tls(authority.tls(None)), &other).await.0);
    assert!(said.contains("not valid for name"), "{said}");
}

#[tokio::test]
async fn certificates_are_read_again_when_they_change_and_the_last_good_ones_stay() {
    let (authority, next) = (Authority::ready(), Authority::ready());
    let (mut listener, address) = listen(&Safety::Require(authority.tls(Some("n1"))));
    let open_with = async |listener: &mut dyn Listener, trusted: &Authority| {
        open(listener, Dialing::Tls(trusted.tls(None)), &address).await
    };
    let (standing, far) = open_with(&mut *listener, &authority).await;
    let (mut standing, mut far) = (standing.unwrap(), far.unwrap());

    std::fs::write(authority.path("n1"), "half a certi").unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(open_with(&mut *listener, &authority).await.0.is_ok(), "the last good one is used");

    let copy = |name: &str| put(&authority.path(name), &std::fs::read(next.path(name)).unwrap());
    ["n1", "n1.key", "authority"].into_iter().for_each(copy);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (near, its) = open_with(&mut *listener, &next).await;
    talk(&mut near.unwrap(), &mut its.unwrap()).await;
    talk(&mut standing, &mut far).await;
}

#[tokio::test]
async fn a_certificate_that_others_would_refuse_is_refused_at_the_start_and_not_taken_over_later() {
    let (authority, stranger) = (Authority::ready(), Authority::ready());
    authority.certify("late", 2002);
    let mixed = |own: &Authority, name: &str| {
        let files = TlsFiles { authority: authority.path("authority"), ..own.files(Some(name)) };
        Tls::read(files).unwrap()
    };
    for (tls, address, expected) in [
        (mixed(&authority, "late"), "127.0.0.1:7401", "expired"),
        (mixed(&stranger, "n1"), "127.0.0.1:7401", "invalid peer certificate"),
        (mixed(&authority, "n1"), "10.9.9.9:7401", "not valid for name"),
    ] {
        let said = tls.must_hold_for(address).unwrap_err().to_string();
        assert!(said.contains(expected) && said.contains(address), "{said}");
    }
    let tls = mixed(&authority, "n1");
    let (mut listener, address) = listen(&Safety::Require(tls.clone()));
    tls.must_hold_for(&address).unwrap();
    for name in ["late", "late.key"] {
        let bytes = std::fs::read(authority.path(name)).unwrap();
        put(&authority.path(&name.replace("late", "n1")), &bytes);
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (near, far) = open(&mut *listener, Dialing::Tls(authority.tls(None)), &address).await;
    talk(&mut near.unwrap(), &mut far.unwrap()).await;
    // An authority that is withdrawn is trusted no longer, although the certificate beside it was not renewed.
    let thief = Dialing::Tls(authority.tls(Some("n1")));
    put(&authority.path("authority"), &std::fs::read(stranger.path("authority")).unwrap());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(open(&mut *listener, thief, &address).await.1.is_none());
}

/// As a program replaces a file whole.
fn put(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(beside, path).unwrap();
}

#[test]
fn files_that_hold_nothing_of_use_are_named() {
    let authority = Authority::ready();
    std::fs::write(authority.path("empty"), "").unwrap();
    for (own, trusted, file) in
        [("n1", "missing", "missing"), ("n1", "empty", "empty"), ("none", "authority", "none")]
    {
        let files = TlsFiles { authority: authority.path(trusted), ..authority.files(Some(own)) };
        assert_eq!(Tls::read(files).unwrap_err().file, authority.path(file));
    }
    // A key of another certificate.
    authority.certify("n2", 4000);
    let own = Some((authority.path("n1"), authority.path("n2.key")));
    let files = TlsFiles { own, ..authority.files(None) };
    assert!(Tls::read(files).unwrap_err().to_string().contains("n1 cannot be used"));
}
