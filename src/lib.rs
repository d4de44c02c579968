//! quorlock: a lock on a quorum of independent Redis masters.
