//! Nodes whose ensemble, chroot or credentials are not theirs: refused at once, and nothing is changed.

use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use super::documents;
use super::servers::{Ensemble, wait_until};
use crate::cluster::{Answer, Process, command, free_port_base, tontine};

/// A node of a cluster that it creates alone, stopped cleanly.
fn created_and_stopped(address: &str, name: &str, folder: &Path, native: &str, further: &[&str]) {
    let create = ["cluster", "create", "--nodes=1", "--name", name, "--coordination", address];
    let mut creating =
        Process::start(&mut command(&[&create[..], further].concat()), folder.join("create.stderr"));
    wait_until("the chroot is prepared", || creating.stderr().contains("0 of 1 nodes are registered"));
    let data = folder.join(name).display().to_string();
    let serve = ["serve", "--coordination", address, "--data-dir", &data, "--listen", native];
    let mut node = Process::start(&mut command(&[&serve[..], further].concat()), folder.join("node.stderr"));
    node.await_line("node 1  ");
    assert_eq!(creating.wait(), Some(0), "{}", creating.stderr());
    assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
}

fn all(address: &str) -> Vec<String> {
    documents(address, "/").iter().map(|document| format!("{document:?}")).collect()
}

#[test]
fn a_directory_is_of_one_cluster_and_of_its_chroot() {
    let folder = TempDir::new().unwrap();
    let ensemble = Ensemble::start(1);
    let (shop, other) = (ensemble.address("/shop"), ensemble.address("/other"));
    let native = format!("127.0.0.1:{}", free_port_base() + 1);
    for (address, name) in [(&shop, "shop"), (&other, "other")] {
        created_and_stopped(address, name, folder.path(), &native, &[]);
    }
    let serve = |address: &str, name: &str| {
        let data = folder.path().join(name).display().to_string();
        tontine(&["serve", "--coordination", address, "--data-dir", &data, "--listen", &native])
    };
    let before = (all(&shop), all(&other));
    serve(&other, "shop").fails_with("belongs to n1 of cluster \"shop\", and zookeeper://");
    serve(&ensemble.address("/shop/wrong"), "shop")
        .fails_until_later_with("/shop/wrong does not exist; correct the address");
    // It is there, and nobody has created a cluster in it.
    serve(&ensemble.address("/shop/config"), "shop")
        .fails_until_later_with("holds no cluster, and none is being created there");
    serve(&ensemble.address("/shop/config"), "new")
        .fails_until_later_with("holds no cluster, and none is being created there");
    assert!(!folder.path().join("new").exists());
    assert_eq!((all(&shop), all(&other)), before);
}

#[test]
fn credentials_that_read_and_do_not_write_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let native = format!("127.0.0.1:{}", free_port_base() + 1);
    let credentials = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        format!("--coordination-credentials={}", file.display())
    };
    let (own, wrong) = (credentials("own", "shop:secret\n"), credentials("wrong", "shop:guess\n"));
    created_and_stopped(&address, "shop", folder.path(), &native, &[&own]);
    let before = all(&address);
    let serve = |name: &str, further: &[&str]| -> Answer {
        let data = folder.path().join(name).display().to_string();
        let words = ["serve", "--coordination", &address, "--data-dir", &data];
        tontine(&[&words[..], further].concat())
    };
    for further in [&[][..], &[wrong.as_str()]] {
        serve("shop", further).fails_with("permission denied for document /active; use the credentials");
        serve("new", further).fails_with("permission denied for document /config; use the credentials");
    }
    assert_eq!(all(&address), before);
    let data = folder.path().join("shop").display().to_string();
    let words = ["serve", "--coordination", &address, "--data-dir", &data, &own];
    let mut node = Process::start(&mut command(&words), folder.path().join("again.stderr"));
    node.await_line("node 1  ");
    assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
}
