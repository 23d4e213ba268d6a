//! A run as a trace in Chrome's format, for Perfetto (<https://ui.perfetto.dev>) or `chrome://tracing`.
//!
//! One track a stage. A slice is a piece of a batch (the whole batch, unless the granularity says otherwise) with its prefill chunks as arguments, or idle time
//! with its cause as name. Slices of a track touch each other from the first arrival to the last result. Times are microseconds from the start of the
//! workload, exact to the nanosecond.

use std::fmt::Write as _;
use std::io::{self, Write};

use cpp_sched::{Row, RowKind};

use crate::pipeline::{Cause, Slice};
use crate::sim::{BatchBack, Watch};

/// Bytes that are kept before they are written.
const KEPT: usize = 1 << 16;

/// Writes a timeline while the run goes on. About 200 bytes for each batch and stage, and 50 for each prefill chunk and stage.
pub struct Timeline<W> {
    sink: W,
    text: String,
    error: Option<io::Error>,
}

impl<W: Write> Timeline<W> {
    /// A timeline of a pipeline of so many stages.
    pub fn new(sink: W, stages: u32) -> Self {
        let mut text = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        text.push_str("{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"pipeline\"}}");
        for s in 0..stages {
            for (name, value) in
                [("thread_name", format!("{{\"name\":\"stage {s}\"}}")), ("thread_sort_index", format!("{{\"sort_index\":{s}}}"))]
            {
                let _ = write!(text, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{s},\"name\":\"{name}\",\"args\":{value}}}");
            }
        }
        Self { sink, text, error: None }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// What could not be written, now or before.
    pub fn finish(mut self) -> io::Result<()> {
        self.text.push_str("\n]}\n");
        self.flush(0);
        match self.error {
            Some(error) => Err(error),
            None => self.sink.flush(),
        }
    }

    fn flush(&mut self, kept: usize) {
        if self.text.len() >= kept {
            if self.error.is_none() {
                self.error = self.sink.write_all(self.text.as_bytes()).err();
            }
            self.text.clear();
        }
    }

    /// The beginning of a slice, up to its arguments.
    fn open(&mut self, slice: &Slice, category: &str, name: std::fmt::Arguments<'_>) {
        let (from, long) = (slice.from_ns, slice.to_ns - slice.from_ns);
        let _ = write!(
            self.text,
            ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\"cat\":\"{category}\",\"name\":\"{name}\"",
            slice.stage,
            from / 1000,
            from % 1000,
            long / 1000,
            long % 1000
        );
    }

    fn bubble(&mut self, slice: &Slice, cause: Cause) {
        self.open(slice, "bubble", format_args!("{cause}"));
        let _ = write!(self.text, ",\"cname\":\"{}\"}}", colour(cause));
    }

    fn piece(&mut self, slice: &Slice, back: &BatchBack<'_>, rows: &[Row], whole: bool) {
        if whole {
            self.open(slice, "batch", format_args!("batch {}", back.batch.0));
        } else {
            self.open(slice, "batch", format_args!("batch {} piece {}", back.batch.0, slice.piece));
        }
        let tokens: u64 = rows.iter().map(|row| u64::from(row.num_scheduled_tokens)).sum();
        let decodes = rows.iter().filter(|row| row.kind == RowKind::Decode).count();
        let _ = write!(self.text, ",\"args\":{{\"tokens\":{tokens},\"decodes\":{decodes},\"chunks\":[");
        let mut separator = "";
        for row in rows.iter().filter(|row| row.kind == RowKind::Prefill) {
            let (request, start, length) = (row.request.0, row.num_computed_tokens, row.num_scheduled_tokens);
            let _ = write!(self.text, "{separator}{{\"request\":{request},\"start\":{start},\"tokens\":{length}}}");
            separator = ",";
        }
        self.text.push_str("]}}");
    }
}

impl<W: Write> Watch for Timeline<W> {
    fn batch(&mut self, back: &BatchBack<'_>) {
        let pieces: Vec<&[Row]> = back.pieces().collect();
        for slice in back.slices {
            match slice.idle {
                Some(cause) => self.bubble(slice, cause),
                None => self.piece(slice, back, pieces.get(slice.piece as usize).copied().unwrap_or(&[]), pieces.len() == 1),
            }
        }
        self.flush(KEPT);
    }

    fn lost(&mut self, back: &BatchBack<'_>) {
        self.batch(back);
    }

    fn idle(&mut self, slices: &[Slice]) {
        self.end(slices);
    }

    fn end(&mut self, slices: &[Slice]) {
        for slice in slices {
            if let Some(cause) = slice.idle {
                self.bubble(slice, cause);
            }
        }
    }
}

/// A colour of the viewer for each cause.
const fn colour(cause: Cause) -> &'static str {
    match cause {
        Cause::Fill | Cause::Drain => "grey",
        Cause::Communication => "yellow",
        Cause::Scheduler => "thread_state_uninterruptible",
        Cause::Upstream | Cause::Downstream => "thread_state_iowait",
        Cause::Dependency => "thread_state_runnable",
        Cause::NoWork => "white",
        Cause::Fault => "terrible",
    }
}
