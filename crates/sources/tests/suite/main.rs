//! What a source that lies, fails or changes leads to. Good servers are real ones, in the suite of `cli`; these here give
//! answers that a good server does not.
#![cfg(feature = "remote")]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runtime::{DiskError, Sources};
use sources::AllSources;

const LENGTH: usize = 3 << 20;

fn content(at: usize) -> u8 {
    ((at * 31) >> 3) as u8
}

/// A request: its method, and the range that it asks for.
struct Asked {
    method: String,
    range: Option<(usize, usize)>,
    if_match: Option<String>,
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut asked = Asked { method: first.split(' ').next()?.to_owned(), range: None, if_match: None };
    for line in lines {
        let line = line.ok()?;
        if line.is_empty() {
            return Some(asked);
        }
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (from, to) = value.strip_prefix("bytes=")?.split_once('-')?;
                asked.range = Some((from.parse().ok()?, to.parse::<usize>().ok()? + 1));
            }
            "if-match" => asked.if_match = Some(value.to_owned()),
            _ => {}
        }
    }
    None
}

/// Serves each connection once, by `answer`, and returns where.
fn serve(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/words", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), answer) = (stream, answer.clone()) else { continue };
            std::thread::spawn(move || {
                if let Some(asked) = read(&stream) {
                    answer(&asked, &mut stream);
                }
            });
        }
    });
    url
}

fn head(stream: &mut TcpStream, tag: &str) {
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\nETag: \"{tag}\"\r\nAccept-Ranges: bytes\r\nConnection: close\r\n\r\n"
    );
}

/// What a good server answers to a range, up to this many bytes of it.
fn part(asked: &Asked, stream: &mut TcpStream, tag: &str, bytes_max: usize) {
    let (from, to) = asked.range.expect("a range is asked for");
    let length = to - from;
    let _ = write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\nContent-Range: bytes {from}-{}/{LENGTH}\r\nETag: \
         \"{tag}\"\r\nConnection: close\r\n\r\n",
        to - 1
    );
    let bytes: Vec<u8> = (from..to).map(content).collect();
    let _ = stream.write_all(&bytes[..length.min(bytes_max)]);
}

fn read_all(url: &str) -> Result<Vec<u8>, DiskError> {
    let disk = AllSources::new().unwrap().open(url).unwrap();
    let file = disk.open("chunk")?;
    let mut bytes = vec![0; file.length() as usize];
    for (which, block) in bytes.chunks_mut(1 << 20).enumerate() {
        let read = file.read_at((which << 20) as u64, block)?;
        assert_eq!(read, block.len());
    }
    Ok(bytes)
}

fn error(url: &str) -> String {
    read_all(url).expect_err("it cannot be read").to_string()
}

#[test]
fn a_whole_file_is_read_by_one_request_for_its_bytes() {
    let gets = Arc::new(AtomicU64::new(0));
    let counted = gets.clone();
    let url = serve(move |asked, stream| match asked.method.as_str() {
        "HEAD" => head(stream, "one"),
        _ => {
            counted.fetch_add(1, Ordering::SeqCst);
            assert_eq!(asked.if_match.as_deref(), Some("\"one\""), "the file that was looked at");
            part(asked, stream, "one", usize::MAX);
        }
    });
    let bytes = read_all(&url).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == content(at)));
    assert_eq!(gets.load(Ordering::SeqCst), 1);
}

#[test]
fn a_whole_answer_where_a_range_was_asked_is_no_range() {
    let url = serve(|asked, stream| {
        head(stream, "one");
        if asked.method == "GET" {
            let _ = stream.write_all(&(0..LENGTH).map(content).collect::<Vec<_>>());
        }
    });
    let disk = AllSources::new().unwrap().open(&url).unwrap();
    let file = disk.open("chunk").unwrap();
    let error = file.read_at(1 << 20, &mut [0; 16]).expect_err("refused").to_string();
    assert!(error.contains("chunk") && error.contains("does not answer requests for a range"), "{error}");
}

#[test]
fn a_file_that_changes_under_its_name_is_an_error() {
    let url = serve(|asked, stream| match asked.method.as_str() {
        "HEAD" => head(stream, "one"),
        _ => {
            let _ = write!(
                stream,
                "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    assert!(error(&url).contains("changed while it was read"));
}

#[test]
fn a_refusal_names_the_variable_and_repeats_no_body() {
    let url = serve(|_, stream| {
        let body = "<secret>hunter2</secret>";
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 403 Forbidden\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
    });
    let error = error(&url);
    assert!(error.contains("permission denied; set TONTINE_HTTP_AUTHORIZATION"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_server_that_points_elsewhere_is_an_error_and_is_not_followed() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let elsewhere = serve(move |_, stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        head(stream, "one");
    });
    let place = elsewhere.strip_suffix("/words").unwrap().to_owned();
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let location = format!("{elsewhere}/chunk?signature=hunter2");
        let url = serve(move |_, stream| {
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        });
        let error = error(&url);
        assert!(error.contains(&format!("the server redirects to {place},")), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn what_is_not_there_is_not_found_and_a_port_without_a_server_is_named() {
    let url = serve(|_, stream| {
        let _ = write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    assert_eq!(read_all(&url), Err(DiskError::NotFound { path: "chunk".to_owned() }));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = error(&format!("http://{gone}/words"));
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_source_that_stalls_is_given_up() {
    let url = serve(|asked, stream| match asked.method.as_str() {
        "HEAD" => head(stream, "one"),
        _ => {
            part(asked, stream, "one", 1000);
            std::thread::park();
        }
    });
    assert!(error(&url).contains("gave nothing for 20 s"));
}

/// Reads a file named `chunk` below a real server's URL, and compares it with a file of this machine.
///
/// `TONTINE_TEST_SOURCE=s3://tables/words TONTINE_TEST_FILE=chunk cargo test -p sources --features remote -- --ignored`
#[test]
#[ignore = "needs a server that the caller started"]
fn a_real_server_gives_the_bytes_that_it_was_given() {
    let url = std::env::var("TONTINE_TEST_SOURCE").expect("TONTINE_TEST_SOURCE names a URL");
    let file =
        std::env::var("TONTINE_TEST_FILE").expect("TONTINE_TEST_FILE names what lies there as `chunk`");
    assert_eq!(read_all(&url).unwrap(), std::fs::read(file).unwrap());
    let disk = AllSources::new().unwrap().open(&format!("{url}-not-there")).unwrap();
    assert!(matches!(disk.open("chunk"), Err(DiskError::NotFound { .. })));
}
