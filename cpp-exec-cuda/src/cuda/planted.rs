//! Mistakes that tests plant: one wait, record, check or step that is left out.
//!
//! With the feature `planted-faults` a call of [`left_out`], [`is_due`] or [`happens`] at the place that `CPP_PLANTED_FAULT` names (file and line, as
//! `cuda/stage.rs:123`) does nothing, as if it were not in the source. `emulation/faults.py` makes the list of places from the source, runs the
//! pipeline without each of them, and wants to see it fail. Without the feature nothing of this is there.

/// Whether the call that this stands in is left out.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub(super) const fn left_out() -> bool {
    false
}

/// Whether the call that this stands in is left out.
#[cfg(feature = "planted-faults")]
#[track_caller]
pub(super) fn left_out() -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<String>> = OnceLock::new();
    let Some(planted) = PLANTED.get_or_init(|| std::env::var("CPP_PLANTED_FAULT").ok()) else { return false };
    let here = std::panic::Location::caller();
    here.file().ends_with(planted.rsplit_once(':').map_or("", |(file, _)| file))
        && planted.rsplit_once(':').is_some_and(|(_, line)| line.parse() == Ok(here.line()))
}

/// Whether something may be done: a check of a slot, or of what must be done before. Left out, it always may.
#[track_caller]
#[inline(always)]
pub(super) fn is_due(condition: bool) -> bool {
    condition || left_out()
}

/// Whether a step is taken. Left out, it is not.
#[track_caller]
#[inline(always)]
pub(super) fn happens() -> bool {
    !left_out()
}
