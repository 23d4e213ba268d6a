//! Measured times of a stage in place of a formula, with interpolation between them.

use std::fmt;

use cpp_sched::CostTerms;
use serde::Serialize;

use crate::calibrate::Group;

/// Times of one stage: of chunks of a prompt by new tokens and history, and of decodes by their number and mean context.
///
/// Between the sizes that were measured times are bilinear, above the largest they go on as between the last two, below the smallest they stay. Several chunks
/// in a batch count as one with as many tokens and as many causal pairs. A batch of chunks and decodes takes the sum of both, less the smallest time of
/// decodes in the table, which stands for what every batch pays once. All in integers.
///
/// ```
/// use cpp_exec_mock::calibrate::Table;
/// use cpp_exec_mock::sim::CostTable;
/// use cpp_sched::CostTerms;
/// let text = "new_tokens,history,decodes,context,time_ns\n100,0,0,0,1000\n200,0,0,0,1800\n100,500,0,0,1200\n200,500,0,0,2200\n0,0,1,0,300\n0,0,9,0,700\n";
/// let table = CostTable::new(&Table::read(text.as_bytes()).unwrap().groups[0]).unwrap();
/// assert_eq!(table.ns(&CostTerms::prefill(250, 150)), (1000 + 1800 + 1200 + 2200) / 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CostTable {
    prompts: Grid,
    /// Without any, decodes count as tokens of a prompt.
    decodes: Option<Grid>,
}

/// Why a table does not give the time of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostTableError {
    /// No row with new tokens of a prompt.
    NoPrompts,
    /// A row with a chunk and decodes: their parts are not known.
    Mixed {
        /// Its new tokens.
        new_tokens: u64,
        /// Its decodes.
        decodes: u64,
    },
    /// A pair of sizes without a row; the rows must be a full grid.
    Missing {
        /// New tokens of a chunk, or decodes.
        size: u64,
        /// Tokens before it, or context of each.
        behind: u64,
    },
    /// A pair of sizes with two rows.
    Twice {
        /// New tokens of a chunk, or decodes.
        size: u64,
        /// Tokens before it, or context of each.
        behind: u64,
    },
}

impl fmt::Display for CostTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPrompts => f.write_str("no rows of prompts: give new_tokens, and history"),
            Self::Mixed { new_tokens, decodes } => {
                write!(f, "a row with {new_tokens} new tokens and {decodes} decodes: measure chunks and decodes apart")
            }
            Self::Missing { size, behind } => {
                write!(f, "no row for {size} tokens or decodes behind {behind}: every size needs a row for every history or context")
            }
            Self::Twice { size, behind } => write!(f, "two rows for {size} tokens or decodes behind {behind}: keep one"),
        }
    }
}

impl std::error::Error for CostTableError {}

impl CostTable {
    /// From the rows of a measurement.
    ///
    /// # Errors
    /// See [`CostTableError`].
    pub fn new(group: &Group) -> Result<Self, CostTableError> {
        let (mut prompts, mut decodes) = (Vec::new(), Vec::new());
        for row in &group.rows {
            match (row.new_tokens, row.terms.decodes) {
                (new_tokens, 0) => prompts.push((new_tokens, row.terms.prefill_history, row.time_ns)),
                (0, n) => decodes.push((n, row.terms.decode_context / n, row.time_ns)),
                (new_tokens, decodes) => return Err(CostTableError::Mixed { new_tokens, decodes }),
            }
        }
        let prompts = Grid::new(prompts)?.ok_or(CostTableError::NoPrompts)?;
        Ok(Self { prompts, decodes: Grid::new(decodes)? })
    }

    /// The time of a batch in nanoseconds. O(log rows).
    #[must_use]
    pub fn ns(&self, terms: &CostTerms) -> u64 {
        let decodes = terms.decodes;
        let new_tokens = terms.tokens.saturating_sub(decodes);
        let mut sum = 0u64;
        if new_tokens > 0 {
            let own = u128::from(new_tokens) * u128::from(new_tokens + 1) / 2;
            let history = terms.pairs.saturating_sub(own) / u128::from(new_tokens);
            sum = self.prompts.at(new_tokens, u64::try_from(history).unwrap_or(u64::MAX));
        }
        if let Some(context) = terms.decode_context.checked_div(decodes) {
            let grid = self.decodes.as_ref().unwrap_or(&self.prompts);
            let once = if new_tokens > 0 { grid.least() } else { 0 };
            sum = sum.saturating_add(grid.at(decodes, context).saturating_sub(once));
        }
        sum
    }
}

/// Times over two sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Grid {
    sizes: Vec<u64>,
    behind: Vec<u64>,
    /// For each size all of `behind`.
    ns: Vec<u64>,
}

impl Grid {
    /// None without rows.
    fn new(mut rows: Vec<(u64, u64, u64)>) -> Result<Option<Self>, CostTableError> {
        rows.sort_unstable();
        let axis = |of: fn(&(u64, u64, u64)) -> u64| {
            let mut axis: Vec<u64> = rows.iter().map(of).collect();
            axis.sort_unstable();
            axis.dedup();
            axis
        };
        let (sizes, behind) = (axis(|row| row.0), axis(|row| row.1));
        if let Some(pair) = rows.windows(2).find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1)) {
            return Err(CostTableError::Twice { size: pair[0].0, behind: pair[0].1 });
        }
        let mut found = rows.iter().peekable();
        for (&size, &behind) in sizes.iter().flat_map(|size| behind.iter().map(move |behind| (size, behind))) {
            if found.next_if(|row| (row.0, row.1) == (size, behind)).is_none() {
                return Err(CostTableError::Missing { size, behind });
            }
        }
        let ns = rows.iter().map(|row| row.2).collect();
        Ok((!rows.is_empty()).then_some(Self { sizes, behind, ns }))
    }

    fn least(&self) -> u64 {
        self.ns.iter().copied().min().unwrap_or(0)
    }

    fn at(&self, size: u64, behind: u64) -> u64 {
        let (x, left, right, width) = span(&self.sizes, size);
        let (y, low, high, height) = span(&self.behind, behind);
        let ns = |dx: usize, dy: usize| {
            let (x, y) = ((x + dx).min(self.sizes.len() - 1), (y + dy).min(self.behind.len() - 1));
            i128::from(self.ns[x * self.behind.len() + y])
        };
        let sum = left * (low * ns(0, 0) + high * ns(0, 1)) + right * (low * ns(1, 0) + high * ns(1, 1));
        let area = width * height;
        u64::try_from((sum.max(0) + area / 2) / area).unwrap_or(u64::MAX)
    }
}

/// Where a value lies on an axis: the place of the point before it, the weights of that and of the next one, and their sum. Above the last point the first
/// weight is negative.
fn span(axis: &[u64], value: u64) -> (usize, i128, i128, i128) {
    // Far more than any batch has; keeps products in range.
    let value = value.clamp(axis[0], axis[0].max(1 << 40));
    if axis.len() == 1 {
        return (0, 1, 0, 1);
    }
    let place = axis.partition_point(|&point| point <= value).saturating_sub(1).min(axis.len() - 2);
    let (from, to) = (i128::from(axis[place]), i128::from(axis[place + 1]));
    (place, to - i128::from(value), i128::from(value) - from, to - from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::Table;

    fn table(rows: &str) -> Result<CostTable, CostTableError> {
        let text = format!("new_tokens,history,decodes,context,time_ns\n{rows}");
        CostTable::new(&Table::read(text.as_bytes()).unwrap().groups[0])
    }

    const ROWS: &str =
        "100,0,0,0,1000\n200,0,0,0,1800\n100,400,0,0,1200\n200,400,0,0,2200\n0,0,1,100,300\n0,0,9,100,700\n0,0,1,300,400\n0,0,9,300,1000\n";

    fn prompt(history: u32, tokens: u32) -> CostTerms {
        CostTerms::prefill(history, tokens)
    }

    fn both(mut a: CostTerms, b: CostTerms) -> CostTerms {
        a.tokens += b.tokens;
        a.pairs += b.pairs;
        a.prefill_history += b.prefill_history;
        a.decode_context += b.decode_context;
        a.decodes += b.decodes;
        a
    }

    #[test]
    fn times_lie_between_those_measured() {
        let table = table(ROWS).unwrap();
        assert_eq!(table.ns(&prompt(0, 100)), 1000);
        assert_eq!(table.ns(&prompt(400, 200)), 2200);
        assert_eq!(table.ns(&prompt(0, 125)), 1200);
        // Half way in history between 1000 and 1200, and between 1800 and 2200.
        assert_eq!((table.ns(&prompt(200, 100)), table.ns(&prompt(200, 150))), (1100, 1550));
        // Beyond: 800 more for each hundred tokens; below the smallest as there.
        assert_eq!((table.ns(&prompt(0, 300)), table.ns(&prompt(0, 10)), table.ns(&prompt(800, 100))), (2600, 1000, 1400));
        let decodes = |n: u32| (0..n).map(|_| CostTerms::decode(200, 1)).fold(CostTerms::default(), both);
        assert_eq!((table.ns(&decodes(1)), table.ns(&decodes(5)), table.ns(&decodes(13))), (350, 600, 1100));
        // Together: the 300 that every batch pays are in both.
        assert_eq!(table.ns(&both(prompt(0, 100), decodes(5))), 1000 + 600 - 300);
        // Two chunks of 50 at their beginning have fewer pairs than one of 100, but as many tokens.
        assert_eq!(table.ns(&both(prompt(0, 50), prompt(0, 50))), 1000);
        assert_eq!(table.ns(&CostTerms::default()), 0);
        assert!(table.ns(&prompt(u32::MAX / 2, u32::MAX / 2)) > 1 << 30);
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(table("0,0,1,100,300\n"), Err(CostTableError::NoPrompts));
        assert_eq!(table("100,0,1,5,300\n"), Err(CostTableError::Mixed { new_tokens: 100, decodes: 1 }));
        assert_eq!(table("100,0,0,0,1\n200,0,0,0,2\n100,50,0,0,3\n"), Err(CostTableError::Missing { size: 200, behind: 50 }));
        assert_eq!(table("100,0,0,0,1\n100,0,0,0,2\n"), Err(CostTableError::Twice { size: 100, behind: 0 }));
        // Decodes as tokens of a prompt.
        let prompts = table("1,0,0,0,10\n101,0,0,0,110\n").unwrap();
        assert_eq!(prompts.ns(&CostTerms::decode(7, 1)), 10);
    }
}
