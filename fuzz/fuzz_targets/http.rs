//! libFuzzer's way to [`tontine_fuzz::http`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::http::check(input));
