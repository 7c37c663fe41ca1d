//! libFuzzer's way to [`tontine_fuzz::delta`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::delta::check(input));
