//! HTTP/1.1, as much as asking for one page takes.
//!
//! Must never: take a page that was cut for a whole one.

/// The longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// What is said to the server at `host` to have the page at `path`. It closes the connection behind the page.
pub(super) fn request(host: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// The page of an answer.
///
/// # Errors
/// With what the server refused, or what is wrong with its answer. The page itself is never quoted.
pub(super) fn page(answer: &[u8]) -> Result<Vec<u8>, String> {
    let no_http = || "the answer is not HTTP".to_owned();
    let head = &answer[..answer.len().min(HEAD_BYTES_MAX)];
    let end = find(head, b"\r\n\r\n").ok_or_else(no_http)?;
    let (head, rest) = (&answer[..end], &answer[end + 4..]);
    let head = std::str::from_utf8(head).map_err(|_| no_http())?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
    let status = status.and_then(|line| line.get(2..5)?.parse::<u16>().ok()).ok_or_else(no_http)?;
    if status != 200 {
        return Err(format!("the server answered with HTTP status {status} instead of 200"));
    }
    let (mut length, mut is_chunked) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.parse::<usize>().map_err(|_| no_http())?),
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => is_chunked = true,
            "transfer-encoding" | "content-encoding" if !value.eq_ignore_ascii_case("identity") => {
                return Err("the answer is encoded in a way that was not asked for".to_owned());
            }
            _ => {}
        }
    }
    match length {
        _ if is_chunked => chunks(rest).ok_or_else(cut),
        Some(length) => rest.get(..length).map(<[u8]>::to_vec).ok_or_else(cut),
        None => Ok(rest.to_vec()),
    }
}

fn cut() -> String {
    "the answer was cut".to_owned()
}

/// The content of all chunks; none where the last one is lacking.
fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let end = find(rest, b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(all);
        }
        all.extend_from_slice(rest.get(..size)?);
        rest = rest[size..].strip_prefix(b"\r\n")?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(answer: &str) -> Result<String, String> {
        page(answer.as_bytes()).map(|page| String::from_utf8(page).unwrap())
    }

    #[test]
    fn a_page_comes_by_length_in_chunks_or_until_the_end() {
        assert_eq!(text("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\nmore"), Ok("a 1\n".to_owned()));
        assert_eq!(text("HTTP/1.0 200 OK\r\nServer: x\r\n\r\na 1\n"), Ok("a 1\n".to_owned()));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\na 1\r\nA\r\n\nb{} 2.50\n\r\n0\r\n\r\n";
        assert_eq!(text(chunked), Ok("a 1\nb{} 2.50\n".to_owned()));
    }

    #[test]
    fn what_is_cut_refused_or_something_else_is_no_page() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (answer, why) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n".to_owned(), "HTTP status 404"),
            ("HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n".to_owned(), "HTTP status 302"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na 1\n".to_owned(), "was cut"),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_owned(), "not HTTP"),
            ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n".to_owned(), "encoded"),
            (format!("{chunked}4\r\na 1\n\r\n"), "was cut"),
            (format!("{chunked}4\r\na 1"), "was cut"),
            (format!("{chunked}ffffffffffffffff\r\na"), "was cut"),
            (format!("{chunked}zz\r\na"), "was cut"),
            ("HTTP/1.1 200 OK\r\nContent-Le".to_owned(), "not HTTP"),
            ("+PONG\r\n\r\n".to_owned(), "not HTTP"),
            (String::new(), "not HTTP"),
        ] {
            assert!(text(&answer).is_err_and(|error| error.contains(why)), "{answer:?}");
        }
    }
}
