//! `cpp-sim replay`: exit 0 for a journal that runs again as it was, 1 for one that does not, 2 for a file that is none.

mod common;

use std::process::Command;

use common::TempFile;
use cpp_sched::journal::{Input, JournalWriter};
use cpp_sched::{Config, Request, RequestId, Scheduler};
use serde_json::Value;

/// Exit code, stdout and stderr.
fn replay(path: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(["replay", path]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Replays these bytes and expects this exit code with one line on stderr that says this, and where.
fn refused(bytes: &[u8], code: i32, says: &str) {
    let file = TempFile::new(".journal", "");
    std::fs::write(&file.0, bytes).unwrap();
    let (got, out, told) = replay(file.path());
    assert_eq!((got, out.as_str()), (code, ""), "{told}");
    assert!(told.starts_with("cpp-sim: ") && told.matches('\n').count() == 1 && !told.contains("panicked"), "{told}");
    assert!(told.contains(says) && told.contains(file.path()), "{told} does not say {says:?}");
}

/// The journal of a run of the tool, and the digest of its decisions.
fn journal() -> (Vec<u8>, String) {
    let file = TempFile::new(".journal", "");
    let args =
        ["run", "--synthetic", "--requests", "12", "--input-mean", "600", "--profile", "demo", "--json", "-", "--journal", file.path()];
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    (std::fs::read(&file.0).unwrap(), report["decision_digest"].as_str().unwrap().to_owned())
}

/// A journal of a few calls, where `record` writes what it is told for each call, right or not.
fn written(record: impl Fn(usize, &Input, &mut JournalWriter, &mut Scheduler)) -> Vec<u8> {
    let config = Config::default();
    let (mut scheduler, mut writer) = (Scheduler::new(config).unwrap(), JournalWriter::new(&config));
    let inputs = [
        Input::Submit(Box::new(Request::new(RequestId(1), vec![5; 40], 4))),
        Input::Schedule,
        Input::Tick(7),
        Input::Fail,
        Input::Schedule,
    ];
    for (at, input) in inputs.iter().enumerate() {
        record(at, input, &mut writer, &mut scheduler);
    }
    writer.take()
}

#[test]
fn a_journal_that_runs_as_it_was_is_0_and_tells_the_digest_of_the_run() {
    let (bytes, digest) = journal();
    let file = TempFile::new(".journal", "");
    std::fs::write(&file.0, &bytes).unwrap();
    let (code, out, told) = replay(file.path());
    assert_eq!((code, told.as_str()), (0, ""));
    assert!(out.contains(&digest) && out.contains("batches as in the journal"), "{out}");
}

#[test]
fn a_journal_that_runs_otherwise_is_1_and_names_the_first_batch() {
    // What was told is not what was submitted, so already the first batch is another one.
    let other = Input::Submit(Box::new(Request::new(RequestId(1), vec![5; 41], 4)));
    let bytes = written(|at, input, writer, scheduler| {
        if at == 0 {
            writer.input(&other);
            input.apply(scheduler);
        } else {
            writer.apply(input, scheduler);
        }
    });
    refused(&bytes, 1, "after 2 inputs and 1 batches: batch 0 differs");
    // A call that the run had and the journal has not.
    let bytes = written(|at, input, writer, scheduler| {
        if at == 3 {
            input.apply(scheduler);
        } else {
            writer.apply(input, scheduler);
        }
    });
    refused(&bytes, 1, "batch 1 of the journal was not scheduled");
    // A batch that the run had and the journal has not.
    let bytes = written(|at, input, writer, scheduler| {
        if at == 1 {
            writer.input(input);
            input.apply(scheduler);
        } else {
            writer.apply(input, scheduler);
        }
    });
    refused(&bytes, 1, "batch 0 is not in the journal");
}

#[test]
fn a_journal_that_was_cut_off_is_2_and_says_where() {
    let (bytes, _) = journal();
    let whole = {
        let file = TempFile::new(".journal", "");
        std::fs::write(&file.0, &bytes).unwrap();
        replay(file.path()).1
    };
    // Where records end: a journal may end there, as that of a run that was killed does.
    let mut ends = vec![9];
    while let Some(head) = bytes.get(ends[ends.len() - 1]..).and_then(|rest| rest.get(..4)) {
        ends.push(ends[ends.len() - 1] + 8 + u32::from_le_bytes(head.try_into().unwrap()) as usize);
    }
    assert_eq!(ends.last(), Some(&bytes.len()));
    for end in [ends[1], ends[ends.len() / 2], ends[ends.len() - 2]] {
        let file = TempFile::new(".journal", "");
        std::fs::write(&file.0, &bytes[..end]).unwrap();
        let (code, out, told) = replay(file.path());
        assert_eq!((code, told.as_str()), (0, ""));
        assert_ne!(out, whole, "it is told how far it went");
    }
    for (begin, cut) in [(ends[1], ends[1] + 1), (ends[1], ends[1] + 7), (ends[ends.len() - 2], bytes.len() - 1), (9, ends[1] - 1)] {
        refused(&bytes[..cut], 2, &format!("cut off within the record at byte {begin}"));
    }
    refused(&bytes[..9], 2, "cut off within the record at byte 9");
}

#[test]
fn a_file_that_is_no_journal_is_2() {
    for bytes in [&b""[..], b"cpp", b"{\"requests\": []}\n", &[0; 4096], b"cppsche"] {
        refused(bytes, 2, "not a journal of inputs");
    }
    let (mut bytes, _) = journal();
    let version = bytes[8];
    bytes[8] = 255;
    refused(&bytes, 2, &format!("a journal of version 255, this reads version {version}"));
    bytes[8] = version;
    // One bit anywhere behind the head of a record.
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    let file = TempFile::new(".journal", "");
    std::fs::write(&file.0, &bytes).unwrap();
    let (code, out, told) = replay(file.path());
    assert_eq!((code, out.as_str()), (2, ""), "{told}");
    assert!(told.contains("at byte") && told.matches('\n').count() == 1, "{told}");
}

#[test]
fn what_a_journal_asks_for_is_not_just_given() {
    let mut config = Config::default();
    config.num_blocks = 1 << 27;
    refused(&JournalWriter::new(&config).take(), 2, "a journal with 134217728 blocks");
    config.num_blocks = 0;
    refused(&JournalWriter::new(&config).take(), 2, "num_blocks must be at least 1");
}

#[test]
fn a_file_that_cannot_be_read_is_2() {
    for path in ["/no/such/file.journal", "/"] {
        let (code, out, told) = replay(path);
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(told.contains(path) && told.matches('\n').count() == 1, "{told}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).arg("replay").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
