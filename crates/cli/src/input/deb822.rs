//! Debian control files: stanzas of `Field: text` lines with continuation lines, separated by blank lines.

use bytes::{Bytes, BytesMut};

use super::lines::{LineRead, Lines, too_long};
use super::record::{
    BadRecord, Found, Input, InputRecord, Position, RECORD_BYTES_MAX, ReadError, RecordReader, moment,
};
use super::settings::Fields as Wanted;

/// Reads stanzas.
pub(super) struct Deb822Reader {
    lines: Lines,
    /// First line of the last stanza.
    line: u64,
    wanted: Wanted,
}

impl Deb822Reader {
    pub(super) fn new(input: Input, position: Position, wanted: Wanted) -> Self {
        Deb822Reader { lines: Lines::new(input, position), line: 0, wanted }
    }

    /// The next stanza without the blank lines around it; the second part tells whether it was too long to keep.
    fn stanza(&mut self) -> Result<Option<(Bytes, bool)>, ReadError> {
        let mut stanza = BytesMut::new();
        let mut cut = false;
        loop {
            let too_long = match self.lines.read()? {
                LineRead::End => break,
                LineRead::TooLong => true,
                LineRead::Whole => {
                    let text = self.lines.text();
                    if is_blank(text) {
                        if stanza.is_empty() && !cut {
                            continue;
                        }
                        break;
                    }
                    stanza.len() + text.len() > RECORD_BYTES_MAX
                }
            };
            if stanza.is_empty() && !cut {
                self.line = self.lines.position().line;
            }
            cut |= too_long;
            if !cut {
                stanza.extend_from_slice(self.lines.text());
            }
        }
        Ok((cut || !stanza.is_empty()).then(|| (stanza.freeze(), cut)))
    }
}

impl RecordReader for Deb822Reader {
    fn next(&mut self) -> Result<Option<Found>, ReadError> {
        let Some((stanza, cut)) = self.stanza()? else { return Ok(None) };
        let line = self.line;
        let found = if cut { Err(too_long()) } else { record(&stanza, &self.wanted) };
        Ok(Some(found.map_err(|reason| BadRecord { line, reason })))
    }

    fn position(&self) -> Position {
        self.lines.position()
    }

    fn line(&self) -> u64 {
        self.line
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

fn record(stanza: &Bytes, wanted: &Wanted) -> Result<InputRecord, String> {
    let fields = Fields::of(stanza)?;
    let field = |name: &str| fields.find(name)?.ok_or_else(|| format!("the stanza has no field {name:?}"));
    let key = field(&wanted.key)?;
    if key.contains(&b'\n') {
        return Err("the key spans several lines".to_owned());
    }
    let value = match &wanted.value {
        Some(name) => stanza.slice_ref(field(name)?),
        None => stanza.clone(),
    };
    let expires = wanted.expires.part().map(|name| fields.find(name)).transpose()?.flatten();
    let expires = expires
        .filter(|text| !text.is_empty())
        .map(|text| moment(&String::from_utf8_lossy(text)))
        .transpose()?;
    Ok(InputRecord { key: stanza.slice_ref(key), value, expires })
}

/// Why a value is no stanza that a load would take; `None` when it is one.
pub(crate) fn unfit_stanza(value: &[u8]) -> Option<String> {
    if value.is_empty()
        || value.split(|&byte| byte == b'\n').rev().skip(1).any(|line| line.trim_ascii().is_empty())
    {
        return Some("it is empty or contains a blank line".to_owned());
    }
    match Fields::of(value) {
        Ok(fields) if fields.0.is_empty() => Some("it has no fields".to_owned()),
        Ok(_) => None,
        Err(reason) => Some(reason),
    }
}

/// Names and texts of a stanza's fields.
struct Fields<'a>(Vec<(&'a [u8], &'a [u8])>);

impl<'a> Fields<'a> {
    fn of(stanza: &'a [u8]) -> Result<Self, String> {
        let mut fields: Vec<(&[u8], usize, usize)> = Vec::new();
        let mut at = 0;
        for (number, line) in stanza.split_inclusive(|&byte| byte == b'\n').enumerate() {
            let start = at;
            at += line.len();
            match line[0] {
                b'#' => {}
                b' ' | b'\t' => match fields.last_mut() {
                    Some(field) => field.2 = at,
                    None => return Err("the stanza begins with a continuation line".to_owned()),
                },
                _ => {
                    let Some(colon) = line.iter().position(|&byte| byte == b':').filter(|&colon| colon > 0)
                    else {
                        return Err(format!(
                            "line {} of the stanza is neither `Field: text` nor a continuation that begins with a space",
                            number + 1
                        ));
                    };
                    fields.push((&line[..colon], start + colon + 1, at));
                }
            }
        }
        Ok(Fields(
            fields.into_iter().map(|(name, start, end)| (name, stanza[start..end].trim_ascii())).collect(),
        ))
    }

    /// The text of a field; its name is the same in upper and lower case. One that comes twice does not say which is
    /// meant.
    fn find(&self, name: &str) -> Result<Option<&'a [u8]>, String> {
        let mut texts = self.0.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        let found = texts.next().map(|(_, text)| *text);
        match texts.next() {
            None => Ok(found),
            Some(_) => Err(format!("the stanza has field {name:?} more than once")),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::WallMillis;

    use super::*;
    use crate::input::settings::Expires;

    fn read(text: &'static str, value: Option<&str>) -> Vec<Found> {
        let expires = Expires::There("Expires".to_owned());
        let wanted = Wanted { key: "Package".to_owned(), value: value.map(str::to_owned), expires };
        let mut reader = Deb822Reader::new(Box::new(text.as_bytes()), Position::default(), wanted);
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn record(key: &'static str, value: &'static str) -> Found {
        Ok(InputRecord { key: key.into(), value: value.into(), expires: None })
    }

    #[test]
    fn stanzas_are_kept_byte_for_byte_and_blank_lines_are_not() {
        let text = "\n\nPackage: a\nDescription: x\n .\n y\n\n\t\npackage:b\r\nSize: 3";
        assert_eq!(
            read(text, None),
            [record("a", "Package: a\nDescription: x\n .\n y\n"), record("b", "package:b\r\nSize: 3")]
        );
    }

    #[test]
    fn one_field_can_be_the_value_with_its_continuation_lines() {
        let text = "Package: a\nDescription: x\n y\nSize: 3\n\nPackage: b\n";
        let found = read(text, Some("description"));
        assert_eq!(found[0], record("a", "x\n y"));
        assert_eq!(found[1].as_ref().unwrap_err().line, 6);
    }

    #[test]
    fn a_field_says_when_a_stanza_expires() {
        let found = read(
            "Package: a\nexpires: 1764321000000\n\nPackage: b\nExpires:\n\nPackage: c\nExpires: soon\n",
            None,
        );
        assert_eq!(found[0].as_ref().unwrap().expires, Some(WallMillis(1_764_321_000_000)));
        assert_eq!(found[1].as_ref().unwrap().expires, None);
        assert!(found[2].as_ref().unwrap_err().reason.contains("\"soon\" is not an expiry time"));
    }

    #[test]
    fn a_wanted_field_that_comes_twice_is_refused() {
        let found = read("Package: a\npackage: b\n\nPackage: c\nSize: 1\nsize: 2\n", None);
        assert!(found[0].as_ref().unwrap_err().reason.contains("\"Package\" more than once"));
        assert_eq!(found[1], record("c", "Package: c\nSize: 1\nsize: 2\n"));
    }

    #[test]
    fn malformed_stanzas_are_named_by_their_first_line_and_the_next_is_read() {
        let text = "Package: a\nnonsense\n\n\n continued\n\nName: x\n\nPackage: b\n";
        let found = read(text, None);
        let lines: Vec<u64> =
            found.iter().filter_map(|found| found.as_ref().err()).map(|bad| bad.line).collect();
        assert_eq!(lines, [1, 5, 7]);
        assert!(found[0].as_ref().unwrap_err().reason.contains("line 2 of the stanza"));
        assert_eq!(found[3], record("b", "Package: b\n"));
    }
}
