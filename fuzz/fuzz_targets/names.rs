#![no_main]
#[path = "../../tests/bad_replies/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::names::run(data));
