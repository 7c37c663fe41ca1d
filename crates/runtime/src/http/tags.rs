//! What `If-Match` and `If-None-Match` ask for (RFC 9110): anything at all, or one entity tag.

/// What a precondition names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// `*`: whatever is there.
    Any,
    /// What is between the quotes of the one entity tag.
    One(String),
}

/// Reads a precondition.
///
/// # Errors
/// Why it is none that a server with versions can judge.
pub fn parse(value: &[u8]) -> Result<Tag, &'static str> {
    let value = value.trim_ascii();
    if value == b"*" {
        return Ok(Tag::Any);
    }
    if value.starts_with(b"W/") {
        return Err("a weak ETag (W/…) names no version; hand the ETag back as it was answered");
    }
    let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let bare = bare.filter(|bare| bare.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'"'));
    let bare = bare.and_then(|bare| std::str::from_utf8(bare).ok());
    bare.map(|bare| Tag::One(bare.to_owned()))
        .ok_or("give one ETag with its quotes, as it was answered, or *")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tag_or_anything() {
        assert_eq!(parse(b" * "), Ok(Tag::Any));
        assert_eq!(parse(b"\"abc-_1\""), Ok(Tag::One("abc-_1".to_owned())));
        assert_eq!(parse(b"\"\""), Ok(Tag::One(String::new())));
        for wrong in [
            &b""[..],
            b"abc",
            b"\"abc",
            b"abc\"",
            b"W/\"abc\"",
            b"\"a\", \"b\"",
            b"\"a\"b\"",
            b"\"a b\"",
            b"\"\xff\"",
            b"\"",
            b"**",
        ] {
            assert!(parse(wrong).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
