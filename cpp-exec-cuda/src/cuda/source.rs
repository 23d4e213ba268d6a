//! The kernels' source, as it lies in `kernels/`, and the unit that is compiled of it.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../kernels/", $name)))),*]
    };
}

/// What is included: names and texts.
pub(super) const HEADERS: [(&str, &str); 3] = files!["attention.cuh", "common.cuh", "ptx.cuh"];

/// What has kernels: names and texts.
pub(super) const SOURCES: [(&str, &str); 10] = files![
    "argmax.cu",
    "attention_decode.cu",
    "attention_prefill.cu",
    "candidates.cu",
    "copy.cu",
    "embedding.cu",
    "gather.cu",
    "norm.cu",
    "rope.cu",
    "swiglu.cu",
];

/// The names of all kernels, as a driver finds them in the machine code.
pub const KERNELS: [&str; 18] = [
    "add_residual",
    "add_rms_norm",
    "argmax_rows",
    "attention_decode_128",
    "attention_decode_32",
    "attention_decode_64",
    "attention_decode_96",
    "attention_merge",
    "attention_prefill_128",
    "attention_prefill_32",
    "attention_prefill_64",
    "attention_prefill_96",
    "copy_blocks",
    "embed_tokens",
    "gather_rows",
    "rotate_and_store",
    "swiglu",
    "top_candidates",
];

/// One unit that includes all sources.
pub(super) fn unit() -> String {
    SOURCES.iter().map(|(name, _)| format!("#include \"{name}\"\n")).collect()
}

/// 128 bits that change with any of the sources and with `more`.
pub(super) fn digest(more: &[&str]) -> u128 {
    let mut hasher = SipHasher24::new();
    let texts = HEADERS.iter().chain(&SOURCES).flat_map(|(name, text)| [*name, *text]);
    for text in texts.chain(more.iter().copied()) {
        // With the length, so that no two lists of texts run together.
        hasher.write_u64(text.len() as u64);
        hasher.write(text.as_bytes());
    }
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests {
    use super::{HEADERS, KERNELS, SOURCES, digest};

    #[test]
    fn the_lists_are_what_is_in_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let mut found: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        found.retain(|name| name.ends_with(".cu") || name.ends_with(".cuh"));
        found.sort();
        let mut listed: Vec<&str> = HEADERS.iter().chain(&SOURCES).map(|(name, _)| *name).collect();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }

    #[test]
    fn kernels_are_those_of_the_sources() {
        let attention = |name: &str| name.starts_with("attention_") && name != "attention_merge";
        for kernel in KERNELS.iter().filter(|name| !attention(name)) {
            assert!(SOURCES.iter().any(|(_, text)| text.contains(&format!("{kernel}("))), "{kernel}");
        }
        let entries: usize = SOURCES.iter().map(|(_, text)| text.matches("extern \"C\" __global__").count()).sum();
        let instances: usize = SOURCES.iter().map(|(_, text)| text.matches("\nATTENTION_").count()).sum();
        // The two macros that make attention kernels are entries as well.
        assert_eq!(entries - 2 + instances, KERNELS.len());
    }

    #[test]
    fn the_digest_tells_lists_apart() {
        assert_eq!(digest(&["sm_90"]), digest(&["sm_90"]));
        let others = [digest(&[]), digest(&["sm_90"]), digest(&["sm_", "90"]), digest(&["sm_90", ""])];
        for (i, one) in others.iter().enumerate() {
            assert!(others[i + 1..].iter().all(|other| other != one));
        }
    }
}
