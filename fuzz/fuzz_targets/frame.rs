//! libFuzzer's way to [`tontine_fuzz::frame`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::frame::check(input));
