//! libFuzzer's way to [`tontine_fuzz::artifact`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::artifact::check(input));
