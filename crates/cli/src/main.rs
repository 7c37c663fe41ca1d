//! The one binary: every role, every command.

fn main() -> std::process::ExitCode {
    cli::run()
}
