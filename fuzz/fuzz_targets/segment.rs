//! libFuzzer's way to [`tontine_fuzz::segment`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::segment::check(input));
