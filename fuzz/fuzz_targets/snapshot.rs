//! libFuzzer's way to [`tontine_fuzz::snapshot`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::snapshot::check(input));
