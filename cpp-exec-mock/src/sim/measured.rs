//! Durations that are sampled during a run.

use super::Slo;
use super::metrics::Samples;
use super::record::Record;

/// The samples of all requests.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) ttft: Samples,
    pub(crate) ttft_long: Samples,
    pub(crate) tpot: Samples,
    pub(crate) itl: Samples,
    pub(crate) e2e: Samples,
    pub(crate) queue: Samples,
    pub(crate) within_slo: u64,
}

impl Measured {
    /// A token counts at `at_ns`; whether it is the request's first one.
    pub(crate) fn token(&mut self, record: &mut Record, at_ns: u64) -> bool {
        let first = record.outputs == 0;
        if first {
            record.first_token_ns = at_ns;
        } else {
            self.itl.push(at_ns - record.last_token_ns);
        }
        record.last_token_ns = at_ns;
        record.outputs += 1;
        first
    }

    /// Adds what is known of a request when its last token is out.
    pub(crate) fn finished(&mut self, record: &Record, long: bool, slo: Slo) {
        let ttft_ns = record.first_token_ns - record.arrival_ns;
        let e2e_ns = record.last_token_ns - record.arrival_ns;
        self.ttft.push(ttft_ns);
        if long {
            self.ttft_long.push(ttft_ns);
        }
        self.e2e.push(e2e_ns);
        self.queue.push(record.first_scheduled_ns - record.arrival_ns);
        let mut tpot_ns = 0;
        if let Some(gaps) = record.outputs.checked_sub(1).filter(|&gaps| gaps > 0).map(u64::from) {
            tpot_ns = (e2e_ns - ttft_ns + gaps / 2) / gaps;
            self.tpot.push(tpot_ns);
        }
        let meets = |limit: Option<u64>, value| limit.is_none_or(|limit| value <= limit);
        if meets(slo.ttft_ns, ttft_ns) && meets(slo.tpot_ns, tpot_ns) {
            self.within_slo += 1;
        }
    }
}
