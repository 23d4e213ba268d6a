//! The table of `cpp-sim bench`.

use std::fmt::Write as _;

use super::units;
use crate::bench::{Bench, Decode};

/// Times of the scheduler, for people.
#[must_use]
pub fn bench_table(bench: &Bench) -> String {
    let mut out = String::new();
    decode(&mut out, "running decodes, block borders spread over the steps", &bench.decode);
    decode(&mut out, "the same, all block borders in one step", &bench.lockstep);
    let _ = writeln!(
        out,
        "{:<30} {:>13} {:>13} {:>13} {:>13}",
        "waiting behind 256 decodes", "schedule ns", "alone ns", "submit ns", "abort ns"
    );
    for row in &bench.queue {
        let cells = [row.schedule_ns, row.schedule_alone_ns, row.submit_ns, row.abort_ns].map(units::count);
        let _ =
            writeln!(out, "{:>30} {:>13} {:>13} {:>13} {:>13}", units::count(row.waiting.into()), cells[0], cells[1], cells[2], cells[3]);
    }
    let _ =
        writeln!(out, "\n{:<30} {:>13} {:>13} {:>13} {:>13}", "tokens of one prompt", "submit ns", "ns a token", "schedule ns", "late ns");
    for row in &bench.prefill {
        let _ = writeln!(
            out,
            "{:>30} {:>13} {:>13.2} {:>13} {:>13}",
            units::count(row.prompt.into()),
            units::count(row.submit_ns),
            row.submit_ns_per_token,
            units::count(row.schedule_ns),
            units::count(row.schedule_late_ns)
        );
    }
    let _ = writeln!(out, "\n{} bytes a waiting request, its tokens kept by the caller", bench.bytes_per_request);
    out
}

fn decode(out: &mut String, title: &str, rows: &[Decode]) {
    let _ = writeln!(
        out,
        "{title}\n{:>30} {:>13} {:>13} {:>13} {:>13}",
        "running", "schedule ns", "complete ns", "ns a request", "allocations"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:>30} {:>13} {:>13} {:>13.1} {:>13}",
            units::count(row.running.into()),
            units::count(row.schedule_ns),
            units::count(row.complete_ns),
            row.ns_per_request,
            row.allocations
        );
    }
    out.push('\n');
}
