//! What the targets share.

/// Without a fuzzer: runs a target over the files that are named on the command line.
#[cfg(not(fuzzing))]
pub fn replay(target: fn(&[u8])) -> std::process::ExitCode {
    for path in std::env::args().skip(1) {
        match std::fs::read(&path) {
            Ok(bytes) => {
                target(&bytes);
                println!("{path}: nothing is wrong");
            }
            Err(error) => {
                eprintln!("{path}: {error}");
                return std::process::ExitCode::from(2);
            }
        }
    }
    std::process::ExitCode::SUCCESS
}
