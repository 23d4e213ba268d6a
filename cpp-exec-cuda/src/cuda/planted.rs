//! Mistakes that tests plant: one wait, record, check or step that is left out.
//!
//! With the feature `planted-faults` a call of [`left_out`], [`is_due`] or [`happens`] at one place (file and line) does nothing, as if it were not in
//! the source. `emulation/faults.py` makes the list of places from the source, runs tests without each of them (`tests/cuda_streams.rs`, those of `nccl`), and
//! wants to see it fail. Without the feature nothing of this is there.

/// Whether the call that this stands in is left out.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub(crate) const fn left_out() -> bool {
    false
}

/// What is left out: the end of a file's path, and a line.
#[cfg(feature = "planted-faults")]
static PLANTED: std::sync::LazyLock<std::sync::RwLock<Option<(String, u32)>>> = std::sync::LazyLock::new(|| {
    // From the beginning; tests that compare with a run without the fault take it out again.
    std::sync::RwLock::new(std::env::var("CPP_PLANTED_FAULT").ok().as_deref().and_then(parse))
});

#[cfg(feature = "planted-faults")]
fn parse(place: &str) -> Option<(String, u32)> {
    place.rsplit_once(':').and_then(|(file, line)| Some((file.to_owned(), line.parse().ok()?)))
}

/// Leaves out what stands at a place, file and line (`cuda/stage/flow.rs:123`), from now on; or nothing. False: this is no place.
#[cfg(feature = "planted-faults")]
pub fn plant_fault(place: Option<&str>) -> bool {
    let parsed = place.map(parse);
    let Ok(mut planted) = PLANTED.write() else { return false };
    *planted = parsed.clone().flatten();
    parsed.is_none_or(|parsed| parsed.is_some())
}

/// Whether the call that this stands in is left out.
#[cfg(feature = "planted-faults")]
#[track_caller]
pub(crate) fn left_out() -> bool {
    let here = std::panic::Location::caller();
    let Ok(planted) = PLANTED.read() else { return false };
    planted.as_ref().is_some_and(|(file, line)| here.line() == *line && here.file().ends_with(file.as_str()))
}

/// Whether something may be done: a check of a slot, or of what must be done before. Left out, it always may.
#[track_caller]
#[inline(always)]
pub(crate) fn is_due(condition: bool) -> bool {
    condition || left_out()
}

/// Whether a step is taken. Left out, it is not.
#[track_caller]
#[inline(always)]
pub(crate) fn happens() -> bool {
    !left_out()
}
