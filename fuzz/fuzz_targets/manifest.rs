//! libFuzzer's way to [`tontine_fuzz::manifest`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::manifest::check(input));
