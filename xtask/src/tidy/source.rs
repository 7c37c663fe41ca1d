//! Just enough reading of Rust to scan it safely: what is code, what is comment, what is string, what is test.

use std::collections::BTreeMap;
use std::ops::Range;

/// A Rust file with its comments and strings set apart.
#[derive(Debug)]
pub(crate) struct Source {
    text: String,
    /// The text, byte for byte, with comments and the insides of strings and characters blanked.
    code: String,
    /// Insides of string literals.
    strings: Vec<Range<usize>>,
    /// Byte ranges compiled for tests only.
    tests: Vec<Range<usize>>,
    line_starts: Vec<usize>,
}

/// A path such as `std::time::Instant::now`, with imports followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsedPath {
    pub(crate) segments: Vec<String>,
    pub(crate) at: usize,
    /// Number of generic arguments written behind it; 0 when none are.
    pub(crate) generics: usize,
    /// Whether it stands in a `use` declaration.
    pub(crate) imported: bool,
}

/// A name that a file declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared<'a> {
    /// `struct`, `fn`, …
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    pub(crate) at: usize,
}

/// A word of code: an identifier, keyword or number.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    at: usize,
    end: usize,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let (code, strings) = blank(text);
        let line_starts = std::iter::once(0)
            .chain(text.bytes().enumerate().filter(|b| b.1 == b'\n').map(|b| b.0 + 1))
            .collect();
        let mut source = Source { text: text.to_owned(), code, strings, tests: Vec::new(), line_starts };
        source.tests = source.test_items();
        source
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at)
    }

    /// Whether the byte lies in an item under `#[cfg(test)]`.
    pub(crate) fn in_tests(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    /// The inside of the string literal that opens within `range`, if there is one.
    pub(crate) fn first_string(&self, range: Range<usize>) -> Option<&str> {
        let inside =
            self.strings.iter().find(|inside| inside.start > range.start && inside.start <= range.end)?;
        Some(&self.text[inside.clone()])
    }

    /// Names of modules declared as `#[cfg(test)] mod name;`.
    pub(crate) fn test_modules(&self) -> Vec<String> {
        self.tests
            .iter()
            .filter_map(|range| self.code[range.clone()].strip_suffix(';')?.trim().rsplit_once("mod "))
            .map(|(_, name)| name.trim().to_owned())
            .collect()
    }

    /// Invocations of macros with one of these names: where the name begins, and the range between the delimiters.
    pub(crate) fn invocations<'a>(
        &'a self,
        names: &'a [&str],
    ) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        self.words().filter(|word| names.contains(&word.text)).filter_map(|word| {
            let rest = self.code[word.end..].strip_prefix('!')?;
            let opening = self.code.len() - rest.trim_start().len();
            let closing = closing(&self.code, opening)?;
            Some((word.at, opening + 1..closing))
        })
    }

    /// Types, functions, modules, constants and macros that the file declares.
    pub(crate) fn declared(&self) -> Vec<Declared<'_>> {
        const KINDS: &[&str] = &["struct", "enum", "union", "trait", "type", "fn", "mod", "const", "static"];
        let words: Vec<Word<'_>> = self.words().collect();
        words
            .windows(2)
            .filter(|pair| KINDS.contains(&pair[0].text))
            // `&'static str` and `*const T` declare nothing.
            .filter(|pair| !self.code[..pair[0].at].ends_with(['\'', '*']))
            .filter(|pair| self.code[pair[0].end..pair[1].at].trim().is_empty())
            .filter(|pair| !KINDS.contains(&pair[1].text) && pair[1].text != "unsafe" && pair[1].text != "_")
            .map(|pair| Declared { kind: pair[0].text, name: pair[1].text, at: pair[1].at })
            .collect()
    }

    /// Every path of the code, with the file's imports followed at its first segment.
    pub(crate) fn paths(&self) -> Vec<UsedPath> {
        let mut found = Vec::new();
        let mut imports = BTreeMap::new();
        let mut skip_to = 0;
        for word in self.words() {
            if word.text == "use" && self.code[word.end..].starts_with(char::is_whitespace) {
                let end = self.code[word.end..].find(';').map_or(self.code.len(), |offset| word.end + offset);
                self.use_tree(word.end..end, &[], &mut found, &mut imports);
                skip_to = end;
            }
            if word.at < skip_to || self.code[..word.at].ends_with("::") && !self.opens_globally(word.at) {
                continue;
            }
            let (segments, end) = self.segments(word);
            if segments.len() > 1 || imports.contains_key(word.text) {
                found.push(UsedPath {
                    segments,
                    at: word.at,
                    generics: generics(&self.code[end..]),
                    imported: false,
                });
            }
        }
        for path in found.iter_mut().filter(|path| !path.imported) {
            if let Some(full) = imports.get(&path.segments[0]) {
                path.segments.splice(0..1, full.iter().cloned());
            }
        }
        found
    }

    fn opens_globally(&self, at: usize) -> bool {
        let before = self.code[..at].trim_end_matches("::");
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '>')
    }

    /// `first` and the segments that follow it, up to a turbofish or the end of the path, and where that is.
    fn segments(&self, first: Word<'_>) -> (Vec<String>, usize) {
        let mut segments = vec![first.text.to_owned()];
        let mut end = first.end;
        while let Some(rest) = self.code[end..].strip_prefix("::") {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if length == 0 {
                break;
            }
            segments.push(rest[..length].to_owned());
            end += 2 + length;
        }
        (segments, end)
    }

    fn use_tree(
        &self,
        range: Range<usize>,
        before: &[String],
        found: &mut Vec<UsedPath>,
        imports: &mut BTreeMap<String, Vec<String>>,
    ) {
        let mut at = range.start;
        for branch in split_top_level(&self.code[range]) {
            let start = at + (branch.len() - branch.trim_start().len());
            at += branch.len() + 1;
            let branch = branch.trim().trim_start_matches("::");
            if branch.is_empty() {
                continue;
            }
            if let Some(open) = branch.find('{') {
                let mut prefix = before.to_vec();
                prefix.extend(split_path(&branch[..open]));
                let inner = start + open + 1;
                let close = closing(&self.code, start + open).unwrap_or(start + branch.len());
                self.use_tree(inner..close, &prefix, found, imports);
                continue;
            }
            let (path, alias) =
                branch.split_once(" as ").map_or((branch, None), |(path, alias)| (path, Some(alias)));
            let mut segments = before.to_vec();
            segments.extend(split_path(path).filter(|segment| segment != "self"));
            let local =
                alias.map(str::trim).or(segments.last().map(String::as_str)).unwrap_or_default().to_owned();
            imports.insert(local, segments.clone());
            found.push(UsedPath { segments, at: start, generics: 0, imported: true });
        }
    }

    fn words(&self) -> impl Iterator<Item = Word<'_>> {
        let code = &self.code;
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = at + code[at..].find(is_word)?;
            let end = code[start..].find(|c| !is_word(c)).map_or(code.len(), |length| start + length);
            at = end;
            Some(Word { text: &code[start..end], at: start, end })
        })
    }

    /// Items under `#[cfg(test)]` or `#[cfg(all(test, …))]`, from the attribute to the closing brace or semicolon.
    fn test_items(&self) -> Vec<Range<usize>> {
        let mut items = Vec::new();
        for marker in ["#[cfg(test", "#[cfg(all(test"] {
            for (start, _) in self.code.match_indices(marker) {
                let Some(mut at) = closing(&self.code, start + 1) else { continue };
                let mut ends = at;
                while let Some(offset) = self.code[at..].find([';', '{', '(', '[']) {
                    at += offset;
                    let opens = self.code.as_bytes()[at];
                    ends = if opens == b';' {
                        at
                    } else {
                        closing(&self.code, at).unwrap_or(self.code.len() - 1)
                    };
                    if matches!(opens, b';' | b'{') {
                        break;
                    }
                    at = ends;
                }
                items.push(start..ends + 1);
            }
        }
        items
    }
}

/// Splits at commas outside of braces, brackets and parentheses.
pub(crate) fn split_top_level(code: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&code[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&code[start..]);
    parts
}

/// The number of arguments in the `<…>` or `::<…>` that `code` begins with.
fn generics(code: &str) -> usize {
    let Some(inside) = code.strip_prefix("::").unwrap_or(code).strip_prefix('<') else { return 0 };
    let (mut depth, mut arguments, mut before) = (0, 1, b' ');
    for byte in inside.bytes() {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' if before == b'-' || before == b'=' => {}
            b'>' if depth == 0 => return arguments,
            b'>' | b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => arguments += 1,
            _ => {}
        }
        before = byte;
    }
    0
}

fn split_path(path: &str) -> impl Iterator<Item = String> {
    path.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned)
}

/// Where the bracket that opens at `opening` closes, in blanked code.
fn closing(code: &str, opening: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(opening) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Blanks comments and the insides of literals; every other byte keeps its place.
fn blank(text: &str) -> (String, Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut strings = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (inside, next) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => {
                let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
                (at..end, end)
            }
            b'/' if bytes[at..].starts_with(b"/*") => {
                let end = block_comment_end(bytes, at);
                (at..end, end)
            }
            b'"' => string(bytes, at, &mut strings),
            b'r' | b'b' | b'c' if opens_raw(bytes, at) => raw_string(text, at, &mut strings),
            b'\'' => character(text, at),
            _ => (at..at, at + 1),
        };
        for byte in &mut code[inside] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = next;
    }
    (String::from_utf8(code).expect("whole characters are blanked"), strings)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string(bytes: &[u8], start: usize, strings: &mut Vec<Range<usize>>) -> (Range<usize>, usize) {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    let end = at.min(bytes.len());
    strings.push(start + 1..end);
    (start + 1..end, (end + 1).min(bytes.len()))
}

fn opens_raw(bytes: &[u8], at: usize) -> bool {
    if at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') {
        return false;
    }
    let rest = bytes[at..].strip_prefix(b"b").or(bytes[at..].strip_prefix(b"c")).unwrap_or(&bytes[at..]);
    let Some(rest) = rest.strip_prefix(b"r") else { return false };
    rest.iter().find(|byte| **byte != b'#') == Some(&b'"')
}

fn raw_string(text: &str, start: usize, strings: &mut Vec<Range<usize>>) -> (Range<usize>, usize) {
    let quote = start + text[start..].find('"').expect("a raw string opens with a quote");
    let hashes = text[start..quote].bytes().filter(|byte| *byte == b'#').count();
    let close = format!("\"{}", "#".repeat(hashes));
    let end = text[quote + 1..].find(&close).map_or(text.len(), |length| quote + 1 + length);
    strings.push(quote + 1..end);
    (quote + 1..end, (end + close.len()).min(text.len()))
}

/// A character literal, or a lifetime (which is left as it is).
fn character(text: &str, start: usize) -> (Range<usize>, usize) {
    let mut rest = text[start + 1..].char_indices();
    match (rest.next(), rest.next()) {
        (Some((_, '\\')), _) => {
            let end = text[start + 3..].find('\'').map_or(text.len(), |length| start + 3 + length);
            (start + 1..end, (end + 1).min(text.len()))
        }
        (Some(_), Some((length, '\''))) => (start + 1..start + 1 + length, start + 2 + length),
        _ => (start..start, start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        Source::new(text).paths().into_iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn comments_strings_and_characters_are_blanked_and_lifetimes_are_not() {
        let text = "a /* b /* c */ */ 'd' '\\'' &'e str \"f\\\"g\" r#\"h\"i\"# b'\"' // j\nk";
        let source = Source::new(text);
        assert_eq!(source.code().len(), text.len());
        assert_eq!(
            source.code().split_whitespace().collect::<String>(),
            "a''''&'estr\"\"r#\"\"#b''k",
            "only code is left"
        );
        assert_eq!(source.strings.iter().map(|s| &text[s.clone()]).collect::<Vec<_>>(), ["f\\\"g", "h\"i"]);
    }

    #[test]
    fn imports_are_followed_through_groups_and_aliases() {
        let text =
            "use std::{fs as disk, time::{self, Instant}};\nfn f() { disk::read(); time::Instant::now(); }";
        assert_eq!(
            paths(text),
            ["std::fs", "std::time", "std::time::Instant", "std::fs::read", "std::time::Instant::now"]
        );
    }

    #[test]
    fn paths_inside_comments_and_strings_are_nobodys() {
        assert_eq!(paths("// std::fs::read\nfn f() { g(\"std::fs::read\") }"), Vec::<String>::new());
        assert_eq!(paths("fn f() { ::std::fs::read() }"), ["std::fs::read"]);
    }

    #[test]
    fn generic_arguments_are_counted() {
        assert_eq!(generics("<K, Vec<(A, B)>> = x"), 2);
        assert_eq!(generics("::<fn(A, B) -> C>()"), 1);
        assert_eq!(generics(" < b"), 0);
    }

    #[test]
    fn items_under_cfg_test_are_tests() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(dead_code)]\nmod tests { fn b() {} }\nfn c() {}\n#[cfg(test)]\nmod d;\n";
        let source = Source::new(text);
        let in_tests = |name: &str| source.in_tests(text.find(name).unwrap());
        assert!(!in_tests("a()") && in_tests("b()") && !in_tests("c()"));
        assert_eq!(source.test_modules(), ["d"]);
    }
}
