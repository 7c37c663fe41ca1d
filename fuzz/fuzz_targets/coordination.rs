//! libFuzzer's way to [`tontine_fuzz::coordination`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tontine_fuzz::coordination::check(input));
