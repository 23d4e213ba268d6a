//! A batch's lists in one stretch of memory, so that one copy takes them to the device.
//!
//! Kernels are launched for a [`Shape`]: that of the batch, or a larger one that a graph was captured for. What a larger one has too much of works on a
//! row that is nobody's: one token behind all others, whose keys are in a block that is nobody's.

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

impl Shape {
    /// Entries of each list in their order, and the numbers of an entry.
    const fn lists(&self) -> [(usize, usize); 10] {
        [
            (self.tokens, 1),
            (self.tokens, 1),
            (self.tokens, 1),
            (self.rows, 4),
            (self.tiles, 2),
            (self.splits, 4),
            (self.merges, 3),
            (self.samples, 1),
            (self.copies, 2),
            (self.tables, 1),
        ]
    }
}

/// Numbers that a list takes: as whole structures of the kernels, 16 bytes.
const fn room(entries: usize, width: usize) -> usize {
    (entries * width).next_multiple_of(4)
}

impl Places {
    pub(super) fn of(shape: &Shape) -> Self {
        let mut end = 0;
        let [tokens, positions, slots, rows, tiles, splits, merges, samples, copies, tables] = shape.lists().map(|(entries, width)| {
            let begin = end;
            end += room(entries, width);
            begin
        });
        Self { tokens, positions, slots, rows, tiles, splits, merges, samples, copies, tables, end }
    }
}

/// Writes a batch's lists; what the shape has beyond it works on nobody's row, or on nothing. How many numbers are to be copied. O(shape).
pub(super) fn pack(layout: &Layout, shape: &Shape, nobody: Nobody, to: &mut [i32]) -> usize {
    let (none, slot) = (layout.rows.len() as i32, nobody.slot as i32);
    // The tables are the longest: of what the shape has beyond them, one entry will do.
    let tables = shape.tables.min(layout.tables.len() + 1);
    // What the batch has of each list, and an entry for the rest.
    let given: [(&mut dyn Iterator<Item = i32>, &[i32]); 10] = [
        (&mut layout.tokens.iter().copied(), &[0]),
        (&mut layout.positions.iter().copied(), &[0]),
        (&mut layout.slots.iter().copied(), &[slot]),
        (
            &mut layout.rows.iter().flat_map(|row| [row.first, row.len, row.start, row.table]),
            &[nobody.token as i32, 1, 0, layout.tables.len() as i32],
        ),
        (&mut layout.tiles.iter().flat_map(|tile| [tile.row, tile.first]), &[0, 0]),
        // No keys: a block that has nothing to do ends at once.
        (&mut layout.splits.iter().flat_map(|split| [split.row, split.begin, split.end, split.slot]), &[none, 0, 0, -1]),
        (&mut layout.merges.iter().flat_map(|merge| [merge.row, merge.slot, merge.count]), &[none, 0, 0]),
        (&mut layout.samples.iter().copied(), &[0]),
        (&mut layout.copies.iter().flatten().copied(), &[0, 0]),
        (&mut layout.tables.iter().copied(), &[nobody.block as i32]),
    ];
    let (mut begin, mut end) = (0, 0);
    for ((entries, width), (numbers, rest)) in (Shape { tables, ..*shape }).lists().into_iter().zip(given) {
        end = begin + entries * width;
        let mut places = to[begin..end].iter_mut();
        numbers.zip(&mut places).for_each(|(number, place)| *place = number);
        places.zip(rest.iter().cycle()).for_each(|(place, number)| *place = *number);
        begin += room(entries, width);
    }
    end
}
