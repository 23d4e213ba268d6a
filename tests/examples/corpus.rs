//! Writes the good inputs that fuzzing starts from, again after a format has changed: `cargo run -p cpp-sched-tests --example corpus -- fuzz/corpus`.

use std::path::PathBuf;
use std::process::ExitCode;

use cpp_sched_tests::malformed::Good;

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("usage: corpus FOLDER");
        return ExitCode::from(2);
    };
    for good in Good::all() {
        let folder = folder.join(good.target);
        let file = folder.join(&good.name);
        if let Err(error) = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, &good.bytes)) {
            eprintln!("{}: {error}", file.display());
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
