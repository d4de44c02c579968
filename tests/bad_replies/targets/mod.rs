//! The targets, as functions of bytes: `cargo test --test bad_replies` runs them over a corpus and its mutations, and
//! `cargo fuzz` over its own.
#![allow(dead_code)]

mod bytes;
pub(crate) mod decoder;
pub(crate) mod forgery;
pub(crate) mod lying_proxy;
pub(crate) mod names;
pub(crate) mod options;
mod recorder;
pub(crate) mod replies;
pub(crate) mod resp;
pub(crate) mod urls;
