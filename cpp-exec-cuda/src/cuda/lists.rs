//! A batch's lists in one stretch of memory, so that one copy takes them to the device.
//!
//! Kernels are launched for a [`Shape`]: that of the batch, or a larger one that a graph was captured for. What a larger one has too much of works on a
//! row that is nobody's: one token behind all others, with one key in a block that is nobody's.

use super::layout::Layout;

/// How many entries each list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) tokens: usize,
    pub(super) rows: usize,
    pub(super) tiles: usize,
    pub(super) splits: usize,
    pub(super) merges: usize,
    pub(super) samples: usize,
    pub(super) copies: usize,
    pub(super) tables: usize,
}

/// Where each list begins, in numbers; the block tables are last, since they are the longest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) tokens: usize,
    pub(super) positions: usize,
    pub(super) slots: usize,
    pub(super) rows: usize,
    pub(super) tiles: usize,
    pub(super) splits: usize,
    pub(super) merges: usize,
    pub(super) samples: usize,
    pub(super) copies: usize,
    pub(super) tables: usize,
    pub(super) end: usize,
}

/// The row that is nobody's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nobody {
    /// Its token's place: behind all others.
    pub(super) token: usize,
    /// Its block.
    pub(super) block: u32,
    /// Where its key goes.
    pub(super) slot: u32,
}

impl Shape {
    pub(super) fn of(layout: &Layout) -> Self {
        Self {
            tokens: layout.positions.len(),
            rows: layout.rows.len(),
            tiles: layout.tiles.len(),
            splits: layout.splits.len(),
            merges: layout.merges.len(),
            samples: layout.samples.len(),
            copies: layout.copies.len(),
            tables: layout.tables.len(),
        }
    }

    /// So many decodes, and nobody's row: of one split each, or of as many as the longest can have.
    pub(super) const fn decodes(rows: usize, splits_of_row: usize, blocks_of_row: usize, samples: bool) -> Self {
        Self {
            tokens: rows,
            rows: rows + 1,
            tiles: 0,
            splits: rows * splits_of_row,
            merges: if splits_of_row > 1 { rows } else { 0 },
            samples: if samples { rows } else { 0 },
            copies: 0,
            tables: rows * blocks_of_row + 1,
        }
    }

    /// Whether a batch can be run in this shape.
    pub(super) const fn holds(&self, batch: &Self) -> bool {
        batch.tokens <= self.tokens
            && batch.rows < self.rows
            && batch.tiles == 0
            && batch.splits <= self.splits
            && batch.merges <= self.merges
            && batch.samples <= self.samples
            && batch.copies == 0
            && batch.tables < self.tables
    }
}

impl Places {
    pub(super) fn of(shape: &Shape) -> Self {
        let mut end = 0;
        // As whole structures of the kernels: 16 bytes.
        let mut next = |numbers: usize| {
            let begin = end;
            end += numbers.next_multiple_of(4);
            begin
        };
        let (tokens, positions, slots) = (next(shape.tokens), next(shape.tokens), next(shape.tokens));
        let (rows, tiles, splits) = (next(shape.rows * 4), next(shape.tiles * 2), next(shape.splits * 4));
        let (merges, samples, copies) = (next(shape.merges * 3), next(shape.samples), next(shape.copies * 2));
        let tables = next(shape.tables);
        Self { tokens, positions, slots, rows, tiles, splits, merges, samples, copies, tables, end }
    }
}

/// Writes a batch's lists; what the shape has beyond it works on nobody's row. How many numbers are to be copied. O(shape).
pub(super) fn pack(layout: &Layout, shape: &Shape, nobody: Nobody, to: &mut [i32]) -> usize {
    let places = Places::of(shape);
    let none = layout.rows.len() as i32;
    let mut list = |place: usize, entries: usize, width: usize, given: &mut dyn Iterator<Item = i32>, rest: &[i32]| {
        let mut filled = 0;
        for (number, value) in to[place..place + entries * width].iter_mut().zip(given) {
            *number = value;
            filled += 1;
        }
        for (at, number) in to[place + filled..place + entries * width].iter_mut().enumerate() {
            *number = rest[at % width];
        }
    };
    let slot = nobody.slot as i32;
    list(places.tokens, shape.tokens, 1, &mut layout.tokens.iter().copied(), &[0]);
    list(places.positions, shape.tokens, 1, &mut layout.positions.iter().copied(), &[0]);
    list(places.slots, shape.tokens, 1, &mut layout.slots.iter().copied(), &[slot]);
    let rows = &mut layout.rows.iter().flat_map(|row| [row.first, row.len, row.start, row.table]);
    list(places.rows, shape.rows, 4, rows, &[nobody.token as i32, 1, 0, layout.tables.len() as i32]);
    list(places.tiles, shape.tiles, 2, &mut layout.tiles.iter().flat_map(|tile| [tile.row, tile.first]), &[0, 0]);
    let splits = &mut layout.splits.iter().flat_map(|split| [split.row, split.begin, split.end, split.slot]);
    list(places.splits, shape.splits, 4, splits, &[none, 0, 0, -1]);
    let merges = &mut layout.merges.iter().flat_map(|merge| [merge.row, merge.slot, merge.count]);
    list(places.merges, shape.merges, 3, merges, &[none, 0, 0]);
    list(places.samples, shape.samples, 1, &mut layout.samples.iter().copied(), &[0]);
    list(places.copies, shape.copies, 2, &mut layout.copies.iter().flatten().copied(), &[0, 0]);
    let tables = (layout.tables.len() + usize::from(shape.tables > layout.tables.len())).min(shape.tables);
    list(places.tables, tables, 1, &mut layout.tables.iter().copied(), &[nobody.block as i32]);
    places.tables + tables
}
