#![no_main]
#[path = "../../tests/hostile/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::decoder::run(data));
