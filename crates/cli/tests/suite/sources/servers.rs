//! Real servers on loopback, each ended by its id: nginx, an S3 server over a folder, and HDFS in one Java process.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::PATIENCE;

/// A process that ends with its owner.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it listens.
    fn start(command: &mut Command, port: u16, missing: &str) -> Server {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = Server(child.expect(missing));
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked to stop, nginx ends its worker, too.
        let id = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        let _ = kill_process(id, Signal::TERM);
        let _ = self.0.wait();
    }
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What `./check --full sources` has installed: in `target/check-servers`, unless the variable says otherwise.
fn installed(path: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/check-servers");
    let folder = std::env::var_os("TONTINE_TEST_SERVERS").map_or_else(here, PathBuf::from);
    let file = folder.join(path);
    assert!(file.exists(), "{} is missing; to install it, run `./check --full sources`", file.display());
    file
}

/// nginx, which serves a folder.
pub(super) struct Nginx {
    _server: Server,
    pub(super) port: u16,
    folder: PathBuf,
}

impl Nginx {
    pub(super) fn start(folder: &Path, port: u16) -> Nginx {
        Nginx::with(folder, port, "")
    }

    /// With more lines in the configuration of its server.
    pub(super) fn with(folder: &Path, port: u16, more: &str) -> Nginx {
        let configuration = format!(
            "daemon off; worker_processes 1; pid {0}/nginx.pid; error_log {0}/error.log;\nevents {{}}\nhttp {{ access_log \
             {0}/access.log; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f; uwsgi_temp_path \
             {0}/u; scgi_temp_path {0}/s;\nserver {{ listen 127.0.0.1:{port}; {more} location / {{ root {0}; }} }} }}\n",
            folder.display()
        );
        let file = folder.join("nginx.conf");
        std::fs::write(&file, configuration).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&file).arg("-e").arg(folder.join("error.log")).args(["-g", "user root;"]);
        let missing = "nginx starts; to install it, run `apt-get install nginx-light`";
        Nginx { _server: Server::start(&mut command, port, missing), port, folder: folder.to_owned() }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The requests that it has answered, one on a line.
    pub(super) fn requests(&self) -> String {
        std::fs::read_to_string(self.folder.join("access.log")).unwrap_or_default()
    }
}

/// The key pair that the S3 server knows.
pub(super) const ACCESS_KEY: &str = "tontine-tests";
pub(super) const SECRET_KEY: &str = "a-secret-of-tests";

/// An S3 server, whose one bucket `tables` is a folder.
pub(super) struct S3 {
    _server: Server,
    folder: tempfile::TempDir,
    endpoint: String,
}

impl S3 {
    pub(super) fn start() -> S3 {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        std::fs::create_dir(folder.path().join("tables")).unwrap();
        let mut command = Command::new(installed("bin/s3s-fs"));
        command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, "--host", "127.0.0.1"]);
        command.args(["--port", &port.to_string()]).arg(folder.path());
        let server = Server::start(&mut command, port, "the S3 server starts");
        S3 { _server: server, folder, endpoint: format!("http://127.0.0.1:{port}") }
    }

    /// The variables that a program needs to use it, with this secret.
    pub(super) fn environment(&self, secret: &'static str) -> Vec<(&'static str, &'static str)> {
        // Tests end with their process.
        let endpoint: &'static str = self.endpoint.clone().leak();
        vec![
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT", endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ]
    }

    /// Where it keeps an object.
    pub(super) fn object(&self, path: &str) -> PathBuf {
        self.folder.path().join("tables").join(path)
    }
}

/// Hadoop's name node and a data node.
pub(super) struct Hdfs {
    child: Child,
    _folder: tempfile::TempDir,
    pub(super) port: u16,
}

impl Hdfs {
    pub(super) fn start() -> Hdfs {
        let folder = tempfile::tempdir().unwrap();
        let classes = format!("{}/*:{}", installed("lib").display(), installed("classes").display());
        let child = Command::new("java")
            .args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", &classes, "Hdfs"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.path().join("stderr")).unwrap())
            .current_dir(folder.path())
            .spawn()
            .expect("java starts; to install it, run `./check setup`");
        let mut hdfs = Hdfs { child, _folder: folder, port: 0 };
        let mut lines = BufReader::new(hdfs.child.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| line.unwrap().strip_prefix("port ").map(str::to_owned));
        hdfs.port = port.expect("the name node says its port").parse().unwrap();
        hdfs
    }
}

impl Drop for Hdfs {
    fn drop(&mut self) {
        // Its data go with the folder, so nothing need be closed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
