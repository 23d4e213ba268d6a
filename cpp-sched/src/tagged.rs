//! Enums that carry their kind as a field where people read them, and as a number in formats that do not describe themselves (which cannot
//! read such a field before they know the kind).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::Chunking;

/// For people: one object, whatever the kind.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tagged {
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    align: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Tokens,
    Cost,
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
        if !serializer.is_human_readable() {
            return Numbered::serialize(self, serializer);
        }
        let tagged = |kind| Tagged { kind, max: None, target_ns: None, align: None, min: None };
        let tagged = match *self {
            Self::Tokens { max } => Tagged { max, ..tagged(Kind::Tokens) },
            Self::Cost { target_ns, align, min } => {
                Tagged { target_ns: Some(target_ns), align: Some(align), min: Some(min), ..tagged(Kind::Cost) }
            }
            Self::Adaptive => tagged(Kind::Adaptive),
        };
        tagged.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Chunking {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Numbered::deserialize(deserializer);
        }
        let t = Tagged::deserialize(deserializer)?;
        let of_cost = t.target_ns.is_some() || t.align.is_some() || t.min.is_some();
        match t.kind {
            Kind::Cost if t.max.is_some() => Err(D::Error::custom("chunking by cost has no max")),
            Kind::Tokens if of_cost => Err(D::Error::custom("chunking by tokens has no target_ns, align or min")),
            Kind::Adaptive if of_cost || t.max.is_some() => Err(D::Error::custom("adaptive chunking has no other field")),
            Kind::Tokens => Ok(Self::Tokens { max: t.max }),
            Kind::Cost => {
                let target_ns = t.target_ns.ok_or_else(|| D::Error::missing_field("target_ns"))?;
                Ok(Self::Cost { target_ns, align: t.align.unwrap_or(1), min: t.min.unwrap_or(1) })
            }
            Kind::Adaptive => Ok(Self::Adaptive),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_kind_of_chunking_is_refused_each_by_itself() {
        let read = |fields: &str| serde_json::from_str::<Chunking>(&alloc::format!("{{\"kind\": {fields}}}"));
        let cost = Chunking::Cost { target_ns: 5, align: 1, min: 1 };
        for (fields, chunking) in [
            ("\"tokens\"", Chunking::Tokens { max: None }),
            ("\"tokens\", \"max\": 3", Chunking::Tokens { max: Some(3) }),
            ("\"cost\", \"target_ns\": 5", cost),
            ("\"adaptive\"", Chunking::Adaptive),
        ] {
            assert_eq!(read(fields).unwrap(), chunking);
            assert_eq!(serde_json::from_str::<Chunking>(&serde_json::to_string(&chunking).unwrap()).unwrap(), chunking);
        }
        for kind in ["\"tokens\"", "\"adaptive\""] {
            for field in ["target_ns", "align", "min"] {
                let error = read(&alloc::format!("{kind}, \"{field}\": 5")).unwrap_err();
                assert!(alloc::format!("{error}").contains("no"), "{error}");
            }
        }
        assert!(read("\"adaptive\", \"max\": 5").is_err() && read("\"cost\", \"target_ns\": 5, \"max\": 5").is_err());
        assert!(read("\"cost\"").is_err());
    }
}
