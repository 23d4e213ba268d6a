//! Opening a trace: gzip is recognised by its magic number, whatever the file is called.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::WorkloadError;

/// How much of a file is looked at to guess its format.
const HEAD_BYTES: u64 = 64 * 1024;

/// The content of a file, unpacked, and a copy of its beginning.
pub(super) struct Opened {
    /// At most [`HEAD_BYTES`] of the content; still to be read from `content` as well.
    pub(super) head: Vec<u8>,
    /// All of the content.
    pub(super) content: Box<dyn BufRead>,
}

/// Opens a file, plain or gzip.
pub(super) fn open(path: &Path) -> Result<Opened, WorkloadError> {
    of(path, File::open(path).map_err(|error| WorkloadError::io(path, error))?)
}

/// The same for content that is there already; `path` is for errors.
pub(super) fn of(path: &Path, content: impl Read + 'static) -> Result<Opened, WorkloadError> {
    let io = |error| WorkloadError::io(path, error);
    let mut raw = BufReader::with_capacity(1 << 16, content);
    let magic = raw.fill_buf().map_err(io)?;
    let mut content: Box<dyn Read> = if magic.starts_with(&[0x1f, 0x8b]) { Box::new(MultiGzDecoder::new(raw)) } else { Box::new(raw) };
    let mut head = Vec::new();
    content.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(io)?;
    let content = BufReader::with_capacity(1 << 16, Cursor::new(head.clone()).chain(content));
    Ok(Opened { head, content: Box::new(content) })
}
