//! The header of a safetensors file: eight bytes of length, then JSON that says where in the rest each tensor lies.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;

use super::error::WeightsProblem;

/// A header is at most so long, by the format.
const MAX_LEN: u64 = 100_000_000;

/// One tensor's entry.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl Entry {
    /// Its bytes, counted from the end of the header.
    pub(super) const fn bytes(&self) -> Range<usize> {
        self.data_offsets.0..self.data_offsets.1
    }
}

/// Bytes of a number, as far as the format knows it.
fn width(dtype: &str) -> Option<usize> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        "U16" | "I16" | "F16" | "BF16" => Some(2),
        "U32" | "I32" | "F32" => Some(4),
        "U64" | "I64" | "F64" => Some(8),
        _ => None,
    }
}

/// Reads the header of a whole file: where the tensors' bytes begin, and the tensors. O(header).
pub(super) fn parse(file: &[u8]) -> Result<(usize, BTreeMap<String, Entry>), WeightsProblem> {
    let found = file.len() as u64;
    if file.starts_with(b"version https://git-lfs") {
        return Err(WeightsProblem::LfsPointer);
    }
    let length = file.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)).ok_or(WeightsProblem::Short(found))?;
    if length > MAX_LEN {
        return Err(WeightsProblem::Header(format!("its first eight bytes speak of a header of {length} bytes")));
    }
    let start = 8 + length as usize;
    let text = file.get(8..start).ok_or(WeightsProblem::Truncated { expected: start as u64, found })?;
    let mut entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(text).map_err(|error| WeightsProblem::Header(format!("its header is not JSON: {error}")))?;
    entries.remove("__metadata__");
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let entry: Entry = serde_json::from_value(entry).map_err(|error| WeightsProblem::Header(format!("tensor {name}: {error}")))?;
        let numbers = entry.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let (first, last) = entry.data_offsets;
        let expected = width(&entry.dtype).and_then(|width| numbers?.checked_mul(width));
        // A kind of number that is not known is told when the tensor is asked for.
        let fits = if width(&entry.dtype).is_some() { last.checked_sub(first) == expected } else { first <= last };
        if !fits {
            let problem = format!("tensor {name}: bytes {first}..{last} do not hold {:?} of {}", entry.shape, entry.dtype);
            return Err(WeightsProblem::Header(problem));
        }
        let end = start.checked_add(last).map_or(u64::MAX, |end| end as u64);
        if end > found {
            return Err(WeightsProblem::Truncated { expected: end, found });
        }
        tensors.insert(name, entry);
    }
    let mut places: Vec<_> = tensors.iter().map(|(name, entry)| (entry.bytes(), name)).filter(|(bytes, _)| !bytes.is_empty()).collect();
    places.sort_by_key(|(bytes, _)| bytes.start);
    if let Some(pair) = places.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        let problem = format!("tensors {} and {} lie over each other", pair[0].1, pair[1].1);
        return Err(WeightsProblem::Header(problem));
    }
    Ok((start, tensors))
}

#[cfg(test)]
mod tests {
    use super::{WeightsProblem, parse};

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0);
        file
    }

    #[test]
    fn tensors_lie_where_the_header_says() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]}}"#;
        let (start, tensors) = parse(&file(header, 16)).unwrap();
        assert_eq!((start, tensors["a"].bytes(), tensors.len()), (8 + header.len(), 4..16, 1));
    }

    #[test]
    fn lengths_that_do_not_fit_are_told_apart() {
        let entry = |offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":[3],"data_offsets":{offsets}}}}}"#);
        for (offsets, data) in [("[0,8]", 12), ("[8,4]", 12), ("[-1,11]", 12), ("[0]", 12)] {
            assert!(matches!(parse(&file(&entry(offsets), data)), Err(WeightsProblem::Header(_))), "{offsets}");
        }
        let twice = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
        assert!(matches!(parse(&file(twice, 8)), Err(WeightsProblem::Header(problem)) if problem.contains("a and b")));
        assert!(matches!(parse(&file(&entry("[4,16]"), 15)), Err(WeightsProblem::Truncated { .. })));
        let huge = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,16],"data_offsets":[0,0]}}"#;
        assert!(matches!(parse(&file(huge, 0)), Err(WeightsProblem::Header(_))));
        for end in 0..file(&entry("[0,12]"), 0).len() {
            assert!(parse(&file(&entry("[0,12]"), 12)[..end]).is_err());
        }
    }
}
