//! libFuzzer's way to [`tontine_fuzz::cluster`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::cluster::check(input));
