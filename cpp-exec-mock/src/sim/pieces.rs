//! A batch as the pieces that pass the stages.

use cpp_sched::{CostTerms, Row, RowKind};

use crate::pipeline::Granularity;

impl Granularity {
    /// Whether two rows that follow each other in a batch are in the same piece.
    fn joins(self, row: &Row, next: &Row) -> bool {
        match self {
            Self::Batch => true,
            Self::Request => row.request == next.request,
            Self::Chunk => row.kind == RowKind::Decode && next.kind == RowKind::Decode,
        }
    }

    /// The rows of a batch, piece by piece.
    pub(crate) fn pieces(self, rows: &[Row]) -> impl Iterator<Item = &[Row]> {
        rows.chunk_by(move |row, next| self.joins(row, next))
    }
}

/// The sums that the cost of some rows is made of.
pub(crate) fn terms(rows: &[Row]) -> CostTerms {
    let mut sum = CostTerms::default();
    for row in rows {
        let terms = match row.kind {
            RowKind::Prefill => CostTerms::prefill(row.num_computed_tokens, row.num_scheduled_tokens),
            RowKind::Decode => CostTerms::decode(row.num_computed_tokens, row.num_scheduled_tokens),
        };
        sum.tokens += terms.tokens;
        sum.pairs += terms.pairs;
        sum.decode_context += terms.decode_context;
        sum.prefill_history += terms.prefill_history;
        sum.decodes += terms.decodes;
    }
    sum
}
