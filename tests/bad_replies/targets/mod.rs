//! What hostile input must not do, as functions of bytes: run over a corpus and its mutations by `cargo test --test bad_replies`,
//! and by `cargo fuzz` from `fuzz/`.
#![allow(dead_code)]

mod bytes;
pub(crate) mod decoder;
pub(crate) mod liar;
pub(crate) mod lies;
pub(crate) mod names;
pub(crate) mod options;
mod recorder;
pub(crate) mod replies;
pub(crate) mod resp;
pub(crate) mod urls;
