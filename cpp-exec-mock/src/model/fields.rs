//! Fields of a JSON object, with an error that names file and field.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::ModelError;

/// Reads a file as JSON.
pub(super) fn read_json(path: &Path) -> Result<Value, ModelError> {
    let text = std::fs::read(path).map_err(|error| ModelError::io(path, error))?;
    serde_json::from_slice(&text).map_err(|error| ModelError::Json { path: path.to_owned(), problem: error.to_string() })
}

/// An object of a JSON file.
pub(super) struct Fields<'a> {
    path: PathBuf,
    /// What stands before a field's name in messages: empty, or the outer object's name and a dot.
    prefix: String,
    object: &'a Value,
}

impl<'a> Fields<'a> {
    pub(super) fn new(path: &Path, object: &'a Value) -> Result<Self, ModelError> {
        if !object.is_object() {
            return Err(ModelError::field(path, "the file", "holds no JSON object"));
        }
        Ok(Self { path: path.to_owned(), prefix: String::new(), object })
    }

    /// A field; null counts as not there.
    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn inner(&self, field: &str) -> Result<Option<Self>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(object) if object.is_object() => {
                Ok(Some(Self { path: self.path.clone(), prefix: format!("{}{field}.", self.prefix), object }))
            }
            Some(other) => Err(self.wrong(field, other, "an object")),
        }
    }

    pub(super) fn error(&self, field: &str, problem: impl Into<String>) -> ModelError {
        ModelError::field(&self.path, format!("{}{field}", self.prefix), problem)
    }

    fn wrong(&self, field: &str, found: &Value, expected: &str) -> ModelError {
        self.error(field, format!("is {found}, not {expected}"))
    }

    fn required<T>(&self, field: &str, value: Option<T>) -> Result<T, ModelError> {
        value.ok_or_else(|| self.error(field, "is missing"))
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        self.get(field).map(|value| value.as_str().ok_or_else(|| self.wrong(field, value, "a string"))).transpose()
    }

    pub(super) fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        self.get(field).map_or(Ok(default), |value| value.as_bool().ok_or_else(|| self.wrong(field, value, "true or false")))
    }

    /// A size: at least 1, and small enough that products of a few sizes do not overflow.
    pub(super) fn size(&self, field: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let size = value.as_u64().filter(|size| (1..=1 << 30).contains(size));
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.map(Some).ok_or_else(|| self.wrong(field, value, "a whole number from 1 to 2^30"))
    }

    pub(super) fn need_size(&self, field: &str) -> Result<usize, ModelError> {
        let size = self.size(field)?;
        self.required(field, size)
    }

    /// A positive number.
    pub(super) fn number(&self, field: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.wrong(field, value, "a number above 0"))
    }

    pub(super) fn need_number(&self, field: &str) -> Result<f64, ModelError> {
        let number = self.number(field)?;
        self.required(field, number)
    }

    /// A token, or a list of tokens.
    pub(super) fn tokens(&self, field: &str) -> Result<Vec<u32>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let one = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = match value.as_array() {
            Some(list) => list.iter().map(one).collect::<Option<Vec<_>>>(),
            None => one(value).map(|token| vec![token]),
        };
        tokens.ok_or_else(|| self.wrong(field, value, "a token or a list of tokens"))
    }
}
