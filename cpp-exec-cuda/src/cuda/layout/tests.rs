//! Layouts of random batches, read as the kernels read them.

use proptest::prelude::*;

use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::Work;
use cpp_sched::{BatchId, BlockId, RequestId};

use super::{DECODE_ROWS, Layout, LayoutError, LayoutLimits, Merge, PREFILL_ROWS, Row, Split, Tile};
use crate::cuda::source::{HEADERS, SOURCES};

const LIMITS: LayoutLimits =
    LayoutLimits { block_size: 8, num_blocks: 4096, group: 4, vocabulary: 100, positions: 4000, tokens: 400, rows: 20, split_keys: 64 };

/// Rows of (start, tokens, drafts, whether they sample), each with blocks of its own.
fn work(rows: &[(u32, u32, u32, bool)], copies: &[(u32, u32)], block_size: u32) -> Work {
    let mut work = Work::new(BatchId(1));
    let mut block = 0;
    for (number, &(start, len, drafts, samples)) in rows.iter().enumerate() {
        // Any order of blocks will do, as long as none is two rows'.
        let blocks = (start + len).div_ceil(block_size);
        let mut table: Vec<BlockId> = (block..block + blocks).rev().map(BlockId).collect();
        block += blocks;
        let turn = number % 3 % table.len().max(1);
        table.rotate_left(turn);
        let tokens: Vec<u32> = (0..len).map(|token| (token * 7 + number as u32) % 100).collect();
        let sampling = samples.then(Sampling::default);
        work.push(RequestId(number as u64), start, &tokens, drafts, &table, sampling);
    }
    work.copies = copies.iter().map(|&(from, to)| (BlockId(from), BlockId(to))).collect();
    work
}

fn rows() -> impl Strategy<Value = Vec<(u32, u32, u32, bool)>> {
    let row = (0u32..700, prop_oneof![Just(1u32), 1u32..6, 1u32..60], 0u32..4, any::<bool>());
    prop::collection::vec(row.prop_map(|(start, len, drafts, samples)| (start, len, drafts.min(len - 1), samples)), 0..6)
}

/// How often each key is seen by each packed query row of each row: by tiles, which see all that is visible, and by splits.
fn seen(layout: &Layout, group: u32) -> Vec<Vec<Vec<u32>>> {
    let packed = |row: &Row| row.len as u32 * group;
    let mut seen: Vec<Vec<Vec<u32>>> =
        layout.rows.iter().map(|row| vec![vec![0; (row.start + row.len) as usize]; packed(row) as usize]).collect();
    for tile in &layout.tiles {
        let rows = &mut seen[tile.row as usize];
        let last = rows.len().min(tile.first as usize + PREFILL_ROWS as usize);
        rows[tile.first as usize..last].iter_mut().flatten().for_each(|key| *key += 1);
    }
    for split in &layout.splits {
        for row in seen[split.row as usize].iter_mut().take(DECODE_ROWS as usize) {
            row[split.begin as usize..split.end as usize].iter_mut().for_each(|key| *key += 1);
        }
    }
    seen
}

proptest! {
    #[test]
    fn every_query_sees_every_key_once(rows in rows(), group in 1u32..20, shift in 0u32..6) {
        let limits = LayoutLimits { group, block_size: 1 << shift, num_blocks: 100_000, ..LIMITS };
        let mut layout = Layout::new(limits).unwrap();
        let work = work(&rows, &[], 1 << shift);
        layout.fill(&work, true).unwrap();
        prop_assert!(seen(&layout, group).iter().flatten().flatten().all(|&times| times == 1));

        // Slots: those of a row in sequence, and all slots that are counted.
        let mut slots: Vec<i32> = layout.splits.iter().map(|split| split.slot).filter(|slot| *slot >= 0).collect();
        slots.sort_unstable();
        prop_assert!(slots.iter().copied().eq(0..layout.num_slots as i32));
        for merge in &layout.merges {
            let of_row: Vec<&Split> = layout.splits.iter().filter(|split| split.row == merge.row).collect();
            prop_assert!(merge.count > 1 && of_row.len() == merge.count as usize);
            prop_assert!(of_row.iter().all(|split| (merge.slot..merge.slot + merge.count).contains(&split.slot)));
        }
        prop_assert!(layout.splits.iter().all(|split| (split.slot >= 0) == layout.merges.iter().any(|merge| merge.row == split.row)));
    }

    #[test]
    fn tokens_go_where_the_tables_say(rows in rows(), shift in 0u32..6) {
        let block_size = 1 << shift;
        let mut layout = Layout::new(LayoutLimits { block_size, num_blocks: 100_000, ..LIMITS }).unwrap();
        let work = work(&rows, &[], block_size);
        layout.fill(&work, true).unwrap();
        let mut samples = Vec::new();
        for (row, given) in layout.rows.iter().zip(&work.rows) {
            prop_assert_eq!((row.first as usize, row.len as u32, row.start as u32), (given.first, given.len, given.start));
            for token in 0..given.len {
                let (at, position) = (given.first + token as usize, given.start + token);
                let block = work.table(given)[(position / block_size) as usize];
                prop_assert_eq!(layout.tables[row.table as usize + (position / block_size) as usize], block.0 as i32);
                prop_assert_eq!(layout.positions[at], position as i32);
                prop_assert_eq!(layout.slots[at], (block.0 * block_size + position % block_size) as i32);
                prop_assert_eq!(layout.tokens[at], work.tokens[at] as i32);
                if given.sampling.is_some() && token + 1 + given.drafts >= given.len {
                    samples.push(at as i32);
                }
            }
        }
        prop_assert_eq!(&layout.samples, &samples);
    }

    #[test]
    fn copies_in_launches_do_what_they_do_in_sequence(copies in prop::collection::vec((0u32..12, 0u32..12), 0..30)) {
        let mut layout = Layout::new(LIMITS).unwrap();
        layout.fill(&work(&[], &copies, 8), true).unwrap();
        let mut one_by_one: Vec<u32> = (0..12).collect();
        copies.iter().for_each(|&(from, to)| one_by_one[to as usize] = one_by_one[from as usize]);
        let (mut launched, mut first): (Vec<u32>, usize) = ((0..12).collect(), 0);
        for &last in &layout.copy_launches {
            // Any order within a launch, here the last one first; and all read before any writes.
            let before = launched.clone();
            prop_assert!(last > first);
            for &[from, to] in layout.copies[first..last].iter().rev() {
                launched[to as usize] = before[from as usize];
            }
            let mut as_they_come = before;
            for &[from, to] in layout.copies[first..last].iter().rev() {
                as_they_come[to as usize] = as_they_come[from as usize];
            }
            prop_assert_eq!(&launched, &as_they_come);
            first = last;
        }
        prop_assert_eq!(first, copies.len());
        prop_assert_eq!(launched, one_by_one);
    }

    #[test]
    fn a_rows_splits_depend_on_that_row_alone(rows in rows(), other in rows()) {
        let splits = |all: &[(u32, u32, u32, bool)], of: usize| -> Vec<(i32, i32)> {
            let mut layout = Layout::new(LayoutLimits { num_blocks: 100_000, tokens: 1000, ..LIMITS }).unwrap();
            layout.fill(&work(all, &[], 8), true).unwrap();
            layout.splits.iter().filter(|split| split.row == of as i32).map(|split| (split.begin, split.end)).collect()
        };
        let both: Vec<_> = rows.iter().chain(&other).copied().collect();
        for row in 0..rows.len() {
            prop_assert_eq!(splits(&rows[row..=row], 0), splits(&both, row));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut layout = Layout::new(LIMITS).unwrap();
    let good = work(&[(3, 5, 0, true), (9, 1, 0, true)], &[(1, 2)], 8);
    layout.fill(&good, true).unwrap();
    let before = format!("{layout:?}");
    let mut refused = |change: fn(&mut Work), error: LayoutError| {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(layout.fill(&bad, true), Err(error));
        assert_eq!(format!("{layout:?}"), before);
    };
    refused(|work| work.copies[0].1 = BlockId(4096), LayoutError::Copy(BlockId(4096)));
    refused(|work| work.blocks[0] = BlockId(9999), LayoutError::Row(RequestId(0)));
    refused(|work| work.blocks.truncate(2), LayoutError::Row(RequestId(1)));
    refused(|work| work.rows[1].table = 77, LayoutError::Row(RequestId(1)));
    refused(|work| work.rows[1].start = 4000, LayoutError::Row(RequestId(1)));
    refused(|work| work.rows[1].start = u32::MAX, LayoutError::Row(RequestId(1)));
    refused(|work| work.rows[1].drafts = 1, LayoutError::Row(RequestId(1)));
    refused(|work| work.rows[1].first = 4, LayoutError::Row(RequestId(1)));
    refused(|work| work.tokens[2] = 100, LayoutError::Token(100));
    refused(|work| work.tokens.push(1), LayoutError::Tokens { found: 7, room: 400 });
    let many = work(&[(0, 401, 0, false)], &[], 8);
    assert_eq!(layout.fill(&many, true), Err(LayoutError::Tokens { found: 401, room: 400 }));
    let rows = work(&[(0, 1, 0, false); 21], &[], 8);
    assert_eq!(layout.fill(&rows, true), Err(LayoutError::Rows { found: 21, room: 20 }));
    // A later stage does not look at tokens.
    let mut later = good.clone();
    later.tokens.clear();
    layout.fill(&later, false).unwrap();
    assert!(layout.tokens.is_empty() && layout.positions.len() == 6);
}

#[test]
fn limits_that_kernels_cannot_have_are_named() {
    let refused = |limits: LayoutLimits| Layout::new(limits).unwrap_err().to_string();
    assert!(refused(LayoutLimits { block_size: 12, ..LIMITS }).starts_with("block_size is 12: it must be a power of two"));
    assert!(refused(LayoutLimits { num_blocks: u32::MAX, ..LIMITS }).contains("below 2^31"));
    assert!(refused(LayoutLimits { group: 0, ..LIMITS }).starts_with("group is 0"));
    assert!(refused(LayoutLimits { split_keys: 100, ..LIMITS }).contains("a multiple of 64"));
}

#[test]
fn structures_are_those_of_the_kernels() {
    assert_eq!((size_of::<Row>(), size_of::<Tile>(), size_of::<Split>(), size_of::<Merge>()), (16, 8, 16, 12));
    let fields = |name: &str| -> Vec<&str> {
        let (_, text) = HEADERS.iter().chain(&SOURCES).find(|(_, text)| text.contains(&format!("\nstruct {name} {{"))).unwrap();
        let body = text.split(&format!("\nstruct {name} {{")).nth(1).unwrap().split('}').next().unwrap();
        body.lines().filter_map(|line| line.trim().strip_prefix("int ")?.split(';').next()).collect()
    };
    assert_eq!(fields("Row"), ["first", "len", "start", "table"]);
    assert_eq!(fields("Tile"), ["row", "first"]);
    assert_eq!(fields("Split"), ["row", "begin", "end", "slot"]);
    assert_eq!(fields("Merge"), ["row", "slot", "count"]);
    let constant = |line: &str| SOURCES.iter().chain(&HEADERS).any(|(_, text)| text.contains(line));
    assert!(constant("constexpr int TILE_ROWS = 16;") && constant("constexpr int PREFILL_WARPS = 4;"));
    assert_eq!((DECODE_ROWS, PREFILL_ROWS), (16, 4 * 16));
}
