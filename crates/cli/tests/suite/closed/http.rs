//! HTTP of a closed cluster: over TLS, with the secret of a user, and within its rights.

use std::process::{Command, Output};

use super::Closed;

impl Closed {
    /// What curl gets of node 1, with the secret in this file, or without any: the status, and the body.
    pub(super) fn curl(&self, secret: Option<&str>, path: &str, words: &[&str]) -> (String, String) {
        let url = format!("https://{}{path}", self.cluster.http(1));
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--path-as-is", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.tls("authority.pem"));
        if let Some(file) = secret {
            let header = self.cluster.file("authorization");
            let text = std::fs::read_to_string(file).unwrap();
            std::fs::write(&header, format!("Authorization: Bearer {}\n", text.trim())).unwrap();
            command.args(["-H", &format!("@{header}")]);
        }
        let Output { status, stdout, stderr } = command.args(words).arg(&url).output().expect("curl runs");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let (body, code) = std::str::from_utf8(&stdout).unwrap().rsplit_once('\n').unwrap();
        (code.to_owned(), body.to_owned())
    }
}

fn path(store: &str, key: &str) -> String {
    format!("/v1/stores/{store}/keys/{key}")
}

#[test]
fn http_serves_a_user_within_its_rights_and_nobody_else() {
    let closed = Closed::start();
    let shop = closed.user("shop", &["read:default", "write:default/cart:"]);
    let shop = Some(shop.as_str());
    let cart = path("default", "cart:7");
    assert_eq!(closed.curl(shop, &cart, &["-X", "PUT", "-d", "milk"]).0, "204");
    assert_eq!(closed.curl(shop, &cart, &[]), ("200".to_owned(), "milk".to_owned()));
    let refused = |secret, path: &str, words: &[&str], status: &str, kind: &str| {
        let (code, body) = closed.curl(secret, path, words);
        assert_eq!(code, status, "{path}: {body}");
        assert!(body.contains(kind) && !body.contains("tontine_"), "{path}: {body}");
    };
    refused(None, &cart, &[], "401", "unauthenticated");
    refused(None, &path("no-such-store", "k"), &[], "401", "unauthenticated");
    refused(shop, &path("default", "other"), &["-X", "PUT", "-d", "x"], "403", "forbidden");
    refused(shop, &path("default", "other"), &["-X", "DELETE"], "403", "forbidden");
    refused(shop, "/metrics", &[], "403", "forbidden");
    for path in ["/health", "/ready"] {
        assert_eq!(closed.curl(None, path, &[]).0, "200", "{path}");
    }
    let watcher = closed.user("watcher", &["observe"]);
    let (code, text) = closed.curl(Some(&watcher), "/metrics", &[]);
    assert!(code == "200" && text.contains("tontine_http_requests_total"), "{code} {text}");
    closed.run(&["user", "remove", "shop"]).exits(0);
    refused(shop, &cart, &[], "401", "unauthenticated");
}

#[test]
fn http_without_tls_is_refused_where_tls_is_required() {
    let closed = Closed::start();
    let url = format!("http://{}/health", closed.cluster.http(1));
    let output = Command::new("curl").args(["-sS", "--http0.9", &url]).output().expect("curl runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(!told.contains("alive"), "{told}");
}
