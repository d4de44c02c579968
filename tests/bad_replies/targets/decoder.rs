//! The decoder of lock connections: any bytes, in pieces of any size.

use quorlock::simulation::lock_script::decode;

/// Decodes every prefix of the data. Once a prefix gives a reply or an error, longer ones give the same.
pub(crate) fn run(data: &[u8]) {
    let whole = decode(data);
    let decided = (0..data.len()).find(|end| decode(&data[..*end]) != Ok(None));
    if let Some(end) = decided {
        assert_eq!(
            decode(&data[..end]),
            whole,
            "the first {end} bytes decode differently"
        );
    }
    if let Ok(Some((_, length))) = whole {
        assert!(length <= data.len());
        // The reply ends with its last byte.
        assert_eq!(decided.unwrap_or(data.len()), length);
    }
}
