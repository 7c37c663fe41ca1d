//! `tontine completions`: what a shell needs to complete our commands and options.

use std::process::ExitCode;

use clap::ValueEnum;

/// A shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Source it from `~/.bashrc`: `source <(tontine completions bash)`.
    Bash,
    /// Write it to a file `_tontine` in a folder of `$fpath`.
    Zsh,
    /// Write it to `~/.config/fish/completions/tontine.fish`.
    Fish,
}

/// For which shell.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(tontine completions bash)                               in ~/.bashrc
  tontine completions zsh > ~/.zfunc/_tontine                      with ~/.zfunc in $fpath
  tontine completions fish > ~/.config/fish/completions/tontine.fish")]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: Shell,
}

/// Prints the script for a shell.
pub(crate) fn completions(mut command: clap::Command, arguments: CompletionsArguments) -> ExitCode {
    use std::io::Write;
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "tontine", &mut script);
    // What cannot be written is told at the end.
    let _ = crate::output::Stdout.write_all(&script);
    ExitCode::SUCCESS
}
