//! libFuzzer's way to [`tontine_fuzz::resp`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::resp::check(input));
