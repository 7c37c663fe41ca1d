//! How much goes into one message of a multi-request.

use bytes::Bytes;
use model::VersionSet;
use model::limits::MESSAGE_BYTES_MAX;

/// Splits entries into messages of at most [`MESSAGE_BYTES_MAX`] bytes each, in their order. An entry that is longer
/// by itself has its own message.
pub fn parcels<T>(entries: impl IntoIterator<Item = T>, bytes_of: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parcels = Vec::new();
    let (mut parcel, mut bytes) = (Vec::new(), 0_usize);
    for entry in entries {
        let more = bytes_of(&entry);
        if !parcel.is_empty() && bytes.saturating_add(more) > MESSAGE_BYTES_MAX {
            parcels.push(std::mem::take(&mut parcel));
            bytes = 0;
        }
        bytes = bytes.saturating_add(more);
        parcel.push(entry);
        let count = parcel.len();
        assert!(bytes <= MESSAGE_BYTES_MAX || count == 1, "{count} entries have {bytes} bytes");
    }
    if !parcel.is_empty() {
        parcels.push(parcel);
    }
    parcels
}

/// Bytes that a key and its state take in a message, as good as exactly.
pub fn entry_bytes(key: &Bytes, set: &VersionSet) -> usize {
    key.len() + wire::versions::record_bytes(None, set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_the_order_stay_below_the_limit_and_take_in_whatever_is_longer_alone() {
        let half = MESSAGE_BYTES_MAX / 2;
        let sizes = [1, half, half, 2 * MESSAGE_BYTES_MAX, 1, 1, MESSAGE_BYTES_MAX - 1, half];
        let parcels = parcels(sizes, |&size| size);
        assert_eq!(
            parcels,
            [
                vec![1, half],
                vec![half],
                vec![2 * MESSAGE_BYTES_MAX],
                vec![1, 1],
                vec![MESSAGE_BYTES_MAX - 1],
                vec![half],
            ]
        );
        assert!(super::parcels(Vec::<usize>::new(), |&size| size).is_empty());
    }
}
