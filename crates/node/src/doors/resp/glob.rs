//! Patterns as KEYS, SCAN and CONFIG GET take them: `*`, `?`, `[a-c]`, `[^a]`, and `\` before what stands for itself.

/// Whether the whole text matches, as Redis reads the pattern.
///
/// Only the last `*` can ever have to take more, so it takes at most pattern times text steps, whatever the pattern.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last `*`, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if let Some(length) = one(&pattern[p..], text[t]) {
            p += length;
            t += 1;
            continue;
        }
        let Some((behind, taken)) = star else { return false };
        (p, t) = (behind, taken + 1);
        star = Some((behind, t));
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// The length of the pattern's first element if it stands for this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (length, holds) = class_holds(class, byte);
            holds.then_some(1 + length)
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// The length of what is between the brackets, the closing one included, and whether the byte is meant. A class
/// that is never closed ends with the pattern.
fn class_holds(class: &[u8], byte: u8) -> (usize, bool) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => return (class.len(), found != negated),
            [b']', ..] => return (at + 1, found != negated),
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                let (least, most) = (first.min(last), first.max(last));
                found |= (least..=most).contains(&&byte);
                at += 3;
            }
            [plain, ..] => {
                found |= *plain == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbbc", true),
            ("a*c", "abbbcd", false),
            ("*a*b*", "xxayybzz", true),
            ("?", "", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("[]", "]", false),
            ("[^]", "x", true),
            ("[abc", "c", true),
            ("[a\\]b]", "]", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("\\", "\\", true),
            ("user:*:cart", "user:12:cart", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_does_not_take_exponential_time() {
        let pattern = b"a*".repeat(2000);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &b"a".repeat(10_000)));
    }
}
