//! 128-bit numbers in formats that have none. Where people read, a number that fits into 64 bits is written as one and any other as its decimal
//! digits in a string (`serde_json::Value`, TOML and the like hold no larger ones); binary formats hold it as it is.
//!
//! For fields: `#[serde(with = "crate::wide")]`, and [`list`] and [`pairs`] for those that hold many.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `u128` or `i128`.
pub(crate) trait Wide: Copy + fmt::Display + FromStr + From<u64> + TryFrom<i64> + Serialize + for<'de> Deserialize<'de> {
    /// Writes it as a 64-bit number, if it is one.
    fn narrow<S: Serializer>(self, serializer: S) -> Result<Result<S::Ok, S::Error>, S>;
}

impl Wide for u128 {
    fn narrow<S: Serializer>(self, serializer: S) -> Result<Result<S::Ok, S::Error>, S> {
        match u64::try_from(self) {
            Ok(number) => Ok(serializer.serialize_u64(number)),
            Err(_) => Err(serializer),
        }
    }
}

impl Wide for i128 {
    fn narrow<S: Serializer>(self, serializer: S) -> Result<Result<S::Ok, S::Error>, S> {
        match i64::try_from(self) {
            Ok(number) => Ok(serializer.serialize_i64(number)),
            Err(_) => Err(serializer),
        }
    }
}

pub(crate) fn serialize<T: Wide, S: Serializer>(number: &T, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        number.narrow(serializer).unwrap_or_else(|serializer| serializer.collect_str(number))
    } else {
        number.serialize(serializer)
    }
}

pub(crate) fn deserialize<'de, T: Wide, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    if deserializer.is_human_readable() { deserializer.deserialize_any(Either(PhantomData)) } else { T::deserialize(deserializer) }
}

/// Reads either form.
struct Either<T>(PhantomData<T>);

impl<'de, T: Wide> Visitor<'de> for Either<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or its decimal digits in a string")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        Ok(T::from(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_str<E: Error>(self, digits: &str) -> Result<T, E> {
        digits.parse().map_err(|_| E::invalid_value(Unexpected::Str(digits), &self))
    }

    /// With its feature `arbitrary_precision`, `serde_json` hands a number over as a map of this one key to its digits.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        match map.next_entry::<String, String>()? {
            Some((key, digits)) if key == "$serde_json::private::Number" => self.visit_str(&digits),
            _ => Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
    }
}

/// One of many.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct One<T: Wide>(#[serde(with = "crate::wide", bound = "")] T);

/// A list of numbers.
pub(crate) mod list {
    use super::*;

    pub(crate) fn serialize<T: Wide, S: Serializer>(numbers: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(numbers.iter().map(|&number| One(number)))
    }

    pub(crate) fn deserialize<'de, T: Wide, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        Ok(Vec::<One<T>>::deserialize(deserializer)?.into_iter().map(|One(number)| number).collect())
    }
}

/// A list of pairs whose second is a number.
pub(crate) mod pairs {
    use super::*;

    pub(crate) fn serialize<T: Wide, S: Serializer>(pairs: &[(u32, T)], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(pairs.iter().map(|&(first, number)| (first, One(number))))
    }

    pub(crate) fn deserialize<'de, T: Wide, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(u32, T)>, D::Error> {
        Ok(Vec::<(u32, One<T>)>::deserialize(deserializer)?.into_iter().map(|(first, One(number))| (first, number)).collect())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Both {
        #[serde(with = "crate::wide")]
        natural: u128,
        #[serde(with = "crate::wide")]
        integer: i128,
        #[serde(with = "list")]
        list: Vec<u128>,
        #[serde(with = "pairs")]
        pairs: Vec<(u32, u128)>,
    }

    #[test]
    fn numbers_of_any_size_go_through_formats_that_hold_64_bits() {
        let large = u128::from(u64::MAX);
        for (natural, integer) in
            [(0, 0), (large, i64::MIN.into()), (large + 1, i128::from(i64::MIN) - 1), (u128::MAX, i128::MIN), (7, i128::MAX)]
        {
            let both = Both { natural, integer, list: vec![natural, 3], pairs: vec![(9, natural)] };
            let value = serde_json::to_value(&both).unwrap();
            assert_eq!((value["natural"].is_u64(), value["integer"].is_i64()), (natural <= large, i64::try_from(integer).is_ok()));
            assert_eq!(serde_json::from_value::<Both>(value).unwrap(), both);
            assert_eq!(serde_json::from_str::<Both>(&serde_json::to_string(&both).unwrap()).unwrap(), both);
            // In binary it is what it always was.
            let bytes = postcard::to_allocvec(&both).unwrap();
            assert_eq!(bytes, postcard::to_allocvec(&(natural, integer, [natural, 3].as_slice(), [(9u32, natural)].as_slice())).unwrap());
            assert_eq!(postcard::from_bytes::<Both>(&bytes).unwrap(), both);
        }
        for wrong in ["-1", "\"-1\"", "\"12x\"", "1.5", "\"\"", "null", "\"340282366920938463463374607431768211456\""] {
            let read = serde_json::from_str::<One<u128>>(wrong);
            assert!(read.is_err(), "{wrong}");
        }
    }
}
