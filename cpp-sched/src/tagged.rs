//! Enums that carry their kind as a field where people read them, and as a number in formats that do not describe themselves (which cannot
//! read such a field before they know the kind).

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::Chunking;

const fn one() -> u32 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Chunking", tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Tagged {
    Tokens {
        #[serde(default)]
        max: Option<u32>,
    },
    Cost {
        target_ns: u64,
        #[serde(default = "one")]
        align: u32,
        #[serde(default = "one")]
        min: u32,
    },
    Adaptive,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Chunking")]
enum Numbered {
    Tokens { max: Option<u32> },
    Cost { target_ns: u64, align: u32, min: u32 },
    Adaptive,
}

impl Serialize for Chunking {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { Tagged::serialize(self, serializer) } else { Numbered::serialize(self, serializer) }
    }
}

impl<'de> Deserialize<'de> for Chunking {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() { Tagged::deserialize(deserializer) } else { Numbered::deserialize(deserializer) }
    }
}
