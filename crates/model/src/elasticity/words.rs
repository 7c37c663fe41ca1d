//! Words of adapters and logs, cut to what a line has room for.

/// Stands where words are left out.
const LEFT_OUT: &str = " …";

/// The first words of a text on one line, in so many bytes at most. What is left out is marked, and no word is cut, unless it
/// takes half of the line.
pub fn first_words(text: &str, bytes_max: usize) -> String {
    let line: String = text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    let line = line.trim();
    if line.len() <= bytes_max {
        return line.to_owned();
    }
    let end = line.floor_char_boundary(bytes_max.saturating_sub(LEFT_OUT.len()));
    let (kept, rest) = line.split_at(end);
    let is_whole = rest.starts_with(' ');
    let blank = kept.rfind(' ').filter(|blank| !is_whole && blank * 2 > end).unwrap_or(end);
    format!("{}{LEFT_OUT}", kept[..blank].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_between_two_of_them_and_marked() {
        assert_eq!(first_words("no\nroom\t", 20), "no room");
        assert_eq!(first_words("the disk is full of records", 20), "the disk is full …");
        assert_eq!(first_words("the disk is full of records", 21), "the disk is full …");
        assert_eq!(first_words("the disk is full of records", 23), "the disk is full of …");
        assert_eq!(first_words("a word-that-takes-half-of-it", 20), "a word-that-take …");
        let again = first_words(
            &format!("its machine is gone: {}", first_words("the disk is full of records", 20)),
            30,
        );
        assert_eq!(again, "its machine is gone: the …", "one mark is enough");
    }
}
