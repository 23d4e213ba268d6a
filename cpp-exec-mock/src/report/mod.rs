//! What a run has measured, for machines (JSON) and for people (tables of at most 100 columns).

mod bench;
mod faults;
mod granularity;
mod html;
mod json;
mod pools;
mod table;
mod timeline;
mod units;

pub use bench::bench_table;
pub use faults::{FaultReport, FaultsReport};
pub use granularity::{GranularityReport, GranularityRun, granularity_table};
pub use html::{HtmlRun, Observer, html_page};
pub use json::{
    CompareReport, ConfigReport, DistributionReport, Inputs, PrefillReport, RequestsReport, RunReport, SchedulerNs, SloReport, Throughput,
    TokensReport, WorkloadReport,
};
pub use pools::{Best, Colocated, PoolsPoint, PoolsReport, PoolsRun, idle, pools_table};
pub use table::{compare_table, run_table, wrap};
pub use timeline::Timeline;
