//! Strict reading of JSON objects: whatever is wrong is told with the path of its key.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Whole numbers where nothing else is said: 1 to 2^32 - 1.
pub(super) const COUNT: RangeInclusive<u64> = 1..=u32::MAX as u64;
/// Seeds, drafts, tokens: 0 to 2^32 - 1.
pub(super) const COUNT_OR_ZERO: RangeInclusive<u64> = 0..=u32::MAX as u64;
/// Times in nanoseconds: 0 to 2^63 - 1.
pub(super) const TIME: RangeInclusive<u64> = 0..=i64::MAX as u64;

/// What is wrong with a scenario, and at which key. Displayed as one line, whatever the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Path of the key from the top, such as `requests[2].prompt[0].len`; empty when the file as a whole is meant.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ScenarioError {
    pub(super) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.key.is_empty() { self.problem.clone() } else { format!("{}: {}", self.key, self.problem) };
        // Keys and values come from the file: a line break among them must not break the line.
        text.chars().try_for_each(|c| if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") })
    }
}

impl std::error::Error for ScenarioError {}

type Result<T> = std::result::Result<T, ScenarioError>;

/// Parses a whole text, and refuses an object that has one key twice.
pub(super) fn parse(text: &str) -> Result<Value> {
    let not_json = |error: serde_json::Error| ScenarioError::new("", format!("not valid JSON: {error}"));
    serde_json::from_str::<UniqueKeys>(text).map_err(not_json)?;
    serde_json::from_str(text).map_err(not_json)
}

/// An object of the scenario, its path, and the keys that it may have.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Takes `value` as an object that has no other keys than `known`.
    pub(super) fn of(value: &'a Value, path: &str, known: &[&str]) -> Result<Self> {
        let fields = Self::open(value, path)?;
        fields.only(known)?;
        Ok(fields)
    }

    /// Takes `value` as an object whose keys are checked later, with [`only`](Self::only).
    pub(super) fn open(value: &'a Value, path: &str) -> Result<Self> {
        let map = value.as_object().ok_or_else(|| wrong_type(path, "an object", value))?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// Refuses keys that are not `known`.
    pub(super) fn only(&self, known: &[&str]) -> Result<()> {
        match self.map.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(self.error(key, format!("unknown key; known are {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn error(&self, key: &str, problem: impl Into<String>) -> ScenarioError {
        ScenarioError::new(self.path_of(key), problem)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key)
    }

    /// The value of a key that must be there.
    pub(super) fn need(&self, key: &str) -> Result<&'a Value> {
        self.get(key).ok_or_else(|| self.error(key, "missing"))
    }

    /// A whole number in `range`, if it is there.
    pub(super) fn whole(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        self.get(key).map(|value| whole(value, &self.path_of(key), range)).transpose()
    }

    /// A whole number in 1 to 2^32 - 1, if it is there.
    pub(super) fn count(&self, key: &str) -> Result<Option<u32>> {
        Ok(self.whole(key, COUNT)?.map(narrow))
    }

    /// A whole number in 1 to 2^32 - 1 that must be there.
    pub(super) fn need_count(&self, key: &str) -> Result<u32> {
        self.need(key)?;
        Ok(self.count(key)?.unwrap_or_default())
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| wrong_type(&self.path_of(key), "true or false", value));
        self.get(key).map(read).transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let read = |value: &'a Value| value.as_str().ok_or_else(|| wrong_type(&self.path_of(key), "a string", value));
        self.get(key).map(read).transpose()
    }

    pub(super) fn need_text(&self, key: &str) -> Result<&'a str> {
        self.need(key)?;
        Ok(self.text(key)?.unwrap_or_default())
    }

    /// The literal of a JSON number, digit by digit as written, if it is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<String>> {
        let read = |value: &Value| match value {
            Value::Number(number) => Ok(number.to_string()),
            _ => Err(wrong_type(&self.path_of(key), "a number", value)),
        };
        self.get(key).map(read).transpose()
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        let read = |value: &'a Value| value.as_array().ok_or_else(|| wrong_type(&self.path_of(key), "a list", value));
        Ok(self.get(key).map(read).transpose()?.map(Vec::as_slice))
    }

    pub(super) fn need_list(&self, key: &str) -> Result<&'a [Value]> {
        self.need(key)?;
        Ok(self.list(key)?.unwrap_or_default())
    }

    /// A list of whole numbers from 0 to 2^32 - 1, if it is there.
    pub(super) fn counts_or_zeros(&self, key: &str) -> Result<Option<Vec<u32>>> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let read = |(i, value)| whole(value, &format!("{}[{i}]", self.path_of(key)), COUNT_OR_ZERO).map(narrow);
        list.iter().enumerate().map(read).collect::<Result<_>>().map(Some)
    }

    /// One of the named choices, if it is there.
    pub(super) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(name) = self.text(key)? else { return Ok(None) };
        let found = choices.iter().find(|(choice, _)| *choice == name).map(|(_, value)| *value);
        let names = || choices.iter().map(|(choice, _)| format!("{choice:?}")).collect::<Vec<_>>().join(", ");
        found.map(Some).ok_or_else(|| self.error(key, format!("must be one of {}, is {}", names(), shown(&Value::from(name)))))
    }
}

/// Where the range ends below 2^32 already.
pub(super) fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn whole(value: &Value, path: &str, range: RangeInclusive<u64>) -> Result<u64> {
    let problem = || format!("must be a whole number from {} to {}, is {}", range.start(), range.end(), shown(value));
    value.as_u64().filter(|n| range.contains(n)).ok_or_else(|| ScenarioError::new(path, problem()))
}

fn wrong_type(path: &str, wanted: &str, value: &Value) -> ScenarioError {
    let prefix = if path.is_empty() { "a scenario " } else { "" };
    ScenarioError::new(path, format!("{prefix}must be {wanted}, is {}", shown(value)))
}

/// A value in a message: scalars as they are, but short.
pub(super) fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(_) => return "a list".to_owned(),
        Value::Object(_) => return "an object".to_owned(),
        scalar => scalar.to_string(),
    };
    if text.chars().count() > 60 { text.chars().take(60).chain("…".chars()).collect() } else { text }
}

/// Accepts any JSON in which no object has one key twice, and keeps nothing of it.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor)
    }
}

struct UniqueKeysVisitor;

macro_rules! accept {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> std::result::Result<UniqueKeys, E> { Ok(UniqueKeys) })*
    };
}

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = UniqueKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    accept!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> std::result::Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<UniqueKeys, A::Error> {
        while list.next_element::<UniqueKeys>()?.is_some() {}
        Ok(UniqueKeys)
    }

    // Numbers come this way too (arbitrary precision hands them over as an object with one key).
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<UniqueKeys, A::Error> {
        let mut seen = HashSet::new();
        while let Some((key, UniqueKeys)) = map.next_entry::<String, UniqueKeys>()? {
            if let Some(twice) = seen.replace(key) {
                return Err(A::Error::custom(format!("key {twice:?} stands twice in one object")));
            }
        }
        Ok(UniqueKeys)
    }
}
