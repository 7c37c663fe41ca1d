//! Which requests of a link were seen already.
//!
//! Over TCP no frame comes twice, but the port promises less, and a put that is carried out twice gets two dots:
//! two siblings for one write. Request ids grow along a link, so a sliding window of bits is enough. A request so
//! late that it has fallen out of the window counts as seen; its caller's deadline tells it.
//!
//! Source of the idea: the anti-replay window of IPsec (RFC 4303, section 3.4.3).

use wire::messages::SLOT_BITS;

/// Requests that may arrive before an earlier one.
const WIDTH: u64 = 4096;
const WORDS: usize = (WIDTH / 64) as usize;

/// The last [`WIDTH`] request numbers of one link.
pub(super) struct Window {
    newest: u64,
    seen: Box<[u64; WORDS]>,
}

impl Window {
    pub(super) fn new() -> Self {
        Window { newest: 0, seen: Box::new([0; WORDS]) }
    }

    /// Whether this request id comes for the first time, as far as the window reaches.
    pub(super) fn is_first(&mut self, id: u64) -> bool {
        let number = id >> SLOT_BITS;
        if number > self.newest {
            let forgotten = (number - self.newest).min(WIDTH);
            for step in 1..=forgotten {
                self.clear(number - forgotten + step);
            }
            self.newest = number;
        } else if self.newest - number >= WIDTH {
            return false;
        }
        let (word, bit) = Window::place(number);
        let first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        first
    }

    fn clear(&mut self, number: u64) {
        let (word, bit) = Window::place(number);
        self.seen[word] &= !bit;
    }

    fn place(number: u64) -> (usize, u64) {
        let position = number % WIDTH;
        ((position / 64) as usize, 1 << (position % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_first_only_once_whatever_the_order() {
        let mut window = Window::new();
        let id = |number: u64| number << SLOT_BITS | 7;
        for number in [1, 3, 2, 100, 50, 5000] {
            assert!(window.is_first(id(number)), "{number}");
            assert!(!window.is_first(id(number)), "{number} again");
        }
        assert!(!window.is_first(id(100)), "fallen out of the window");
        assert!(window.is_first(id(4000)));
        assert!(window.is_first(id(1 << 40)));
        assert!(window.is_first(id((1 << 40) - WIDTH + 1)));
        assert!(!window.is_first(id((1 << 40) - WIDTH)));
    }
}
