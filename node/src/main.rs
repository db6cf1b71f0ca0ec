//! Parse, run, print the error, exit with its code.

fn main() -> std::process::ExitCode {
    chappie::cli::run(std::env::args_os())
}
