//! Arguments in, exit code out; everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    midwatch::cli::run()
}
