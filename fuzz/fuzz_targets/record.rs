//! libFuzzer's way to [`tontine_fuzz::record`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::record::check(input));
