//! The one binary: every role, every command.

/// Records come and go by the million; with the system's allocator a tenth of a SET's time went into pages that it had
/// given back and had to ask for again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run()
}
