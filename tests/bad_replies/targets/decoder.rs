//! The decoder of lock connections: any bytes, in pieces of any size.

use quorlock::simulation::lock_script::decode;

/// Decodes every beginning of the data. A longer one never takes back what a shorter one has said.
pub(crate) fn run(data: &[u8]) {
    let whole = decode(data);
    let decided = (0..data.len()).find(|end| decode(&data[..*end]) != Ok(None));
    if let Some(end) = decided {
        assert_eq!(decode(&data[..end]), whole, "the first {end} bytes say otherwise");
    }
    if let Ok(Some((_, length))) = whole {
        assert!(length <= data.len());
        // The last byte is needed, and nothing behind it.
        assert_eq!(decided.unwrap_or(data.len()), length);
    }
}
