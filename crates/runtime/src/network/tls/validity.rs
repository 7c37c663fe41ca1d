//! Until when a certificate is good: the one field of it that operators must know beforehand.
//!
//! The library that checks certificates does not tell. So the few elements before that field are passed over here (RFC 5280,
//! section 4.1). Nothing is trusted by what is read here.

use std::time::{Duration, SystemTime};

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// When a certificate expires; `None` when that cannot be read.
pub(super) fn expires(certificate: &[u8]) -> Option<SystemTime> {
    let (_, certificate, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    // The version may be absent. Then come the serial number, the algorithm and the issuer.
    let is_versioned = rest.first() == Some(&VERSION);
    for _ in 0..if is_versioned { 4 } else { 3 } {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (tag, until, _) = element(element(validity)?.2)?;
    moment(tag, std::str::from_utf8(until).ok()?)
}

/// The tag and the content of the first element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(short), rest),
        // As many bytes of length follow; four are more than any certificate has.
        long @ 0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ`, of years from 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn moment(tag: u8, text: &str) -> Option<SystemTime> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year: u64 = digits[..2].parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let number = |at: usize| rest[at..at + 2].parse::<u64>().ok();
    let (month, day) = (number(0)?, number(2)?);
    let of_day = number(4)? * 3600 + number(6)? * 60 + number(8)?;
    let days = days_since_1970(year, month, day)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(days * 86_400 + of_day))
}

/// Days from 1970-01-01 to a date, by counting. `None` before that, or where there is no such month.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) > leaps(year.checked_sub(1)?);
    let before = BEFORE_MONTH.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let of_year = before + day.checked_sub(1)? + u64::from(is_leap && month > 2);
    let years = year.checked_sub(1970)?;
    Some(years * 365 + leaps(year - 1) - leaps(1969) + of_year)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn the_end_of_a_certificate_is_read_from_it() {
        for (year, month, day, expected) in [
            (2026_i32, 12_u8, 31_u8, 1_798_675_200_u64),
            (2028, 2, 29, 1_835_395_200),
            (2049, 1, 1, 2_493_072_000),
            // From 2050 on the date has another form.
            (2050, 3, 1, 2_529_705_600),
            (2101, 1, 1, 4_133_980_800),
        ] {
            let mut params = CertificateParams::new(vec!["db1.example".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, month, day);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(expires(certificate.der()).map(seconds), Some(expected), "{year}-{month}-{day}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let params = CertificateParams::new(vec!["db1.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let der: &[u8] = certificate.der();
        let whole = expires(der);
        assert!(whole.is_some());
        for end in 0..der.len() {
            // Cut anywhere, it says nothing, and does not end the process.
            assert_eq!(expires(&der[..end]), None);
        }
        assert_eq!(expires(&[SEQUENCE, 0x85, 1, 1, 1, 1, 1]), None);
        assert_eq!(moment(UTC_TIME, "261340000000Z"), None);
        assert_eq!(moment(GENERALIZED_TIME, "19691231000000Z"), None);
    }
}
