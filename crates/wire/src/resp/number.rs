//! Decimal numbers at the speed that a hot path needs.

/// A line `<number>\r\n` at the front of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NumberLine {
    /// It has not arrived whole.
    Incomplete,
    /// It holds something else.
    Invalid,
    /// The number, and the length of the line with its end.
    Number(i64, usize),
}

/// Longest line that can hold a 64-bit number: sign, 19 digits, two bytes of line end.
const LINE_BYTES_MAX: usize = 22;

/// Reads a decimal number and the end of its line, in the one form that Redis accepts: no plus, no leading zeros.
#[inline]
pub(super) fn line(bytes: &[u8]) -> NumberLine {
    // Lengths below ten thousand, whole lines: nearly all that there are.
    let mut value = 0_i64;
    for (length, &byte) in bytes.iter().take(5).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let end = byte == b'\r' && bytes.get(length + 1) == Some(&b'\n');
            if end && length > 0 && (bytes[0] != b'0' || length == 1) {
                return NumberLine::Number(value, length + 2);
            }
            break;
        }
        value = value * 10 + i64::from(digit);
    }
    line_general(bytes)
}

#[cold]
fn line_general(bytes: &[u8]) -> NumberLine {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = window.iter().position(|&byte| byte == b'\r') else {
        let plausible =
            window.iter().enumerate().all(|(at, b)| b.is_ascii_digit() || (at == 0 && *b == b'-'));
        return if plausible && bytes.len() < LINE_BYTES_MAX {
            NumberLine::Incomplete
        } else {
            NumberLine::Invalid
        };
    };
    match (integer(&window[..end]), bytes.get(end + 1)) {
        (None, _) => NumberLine::Invalid,
        (Some(_), None) => NumberLine::Incomplete,
        (Some(number), Some(b'\n')) => NumberLine::Number(number, end + 2),
        (Some(_), Some(_)) => NumberLine::Invalid,
    }
}

/// A whole decimal number in the one form that Redis takes: no plus, no leading zeros, no `-0`.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let canonical = match digits {
        [] => false,
        [b'0'] => !negative,
        [first, ..] => *first != b'0',
    };
    if !canonical {
        return None;
    }
    // Negative numbers reach one further, so the sum runs below zero.
    let mut value = 0_i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// The decimal digits of a number, at the end of the buffer.
pub(super) struct Digits {
    bytes: [u8; 20],
    start: usize,
}

impl Digits {
    #[inline]
    pub(super) fn of(value: i64) -> Self {
        let mut digits = Digits { bytes: [0; 20], start: 20 };
        let mut rest = value.unsigned_abs();
        loop {
            digits.start -= 1;
            digits.bytes[digits.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            digits.start -= 1;
            digits.bytes[digits.start] = b'-';
        }
        digits
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for (text, number) in [("0", 0), ("9", 9), ("-1", -1), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(text.as_bytes()), Some(number));
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        for text in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1a", "9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_line_waits_only_while_it_can_still_become_a_number() {
        for text in ["", "1", "12345678", "1\r", "-", "-1"] {
            assert_eq!(line(text.as_bytes()), NumberLine::Incomplete, "{text:?}");
        }
        for text in ["a", "01\r\n", "\r\n", "1\rx", "1x\r\n", "1111111111111111111111", "--1"] {
            assert_eq!(line(text.as_bytes()), NumberLine::Invalid, "{text:?}");
        }
        assert_eq!(line(b"0\r\n$"), NumberLine::Number(0, 3));
        assert_eq!(line(b"12345\r\n"), NumberLine::Number(12_345, 7));
        assert_eq!(line(b"-1\r\n"), NumberLine::Number(-1, 4));
        assert_eq!(line(b"-9223372036854775808\r\n"), NumberLine::Number(i64::MIN, 22));
    }

    #[test]
    fn digits_round_trip() {
        for number in [0, 7, 10, 99, 1024, -1, i64::MAX, i64::MIN] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
