//! Trace formats, and which one a file is in.

use std::fmt;
use std::str::FromStr;

use super::WorkloadError;

/// A format of request traces. `Display` and `FromStr` use the names of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Azure LLM inference traces: CSV of `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
    Azure,
    /// Mooncake traces: JSON lines of `timestamp`, `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// BurstGPT: CSV of `Timestamp`, `Request tokens`, `Response tokens` and more.
    Burstgpt,
    /// WEKA's agentic coding sessions: a CSV over many sessions, or the raw JSON of one.
    Weka,
    /// JSON lines of `arrival_s`, `input_tokens`, `output_tokens` and options.
    Jsonl,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Azure, Self::Mooncake, Self::Burstgpt, Self::Weka, Self::Jsonl];

    /// Its name in `--format`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Azure => "azure",
            Self::Mooncake => "mooncake",
            Self::Burstgpt => "burstgpt",
            Self::Weka => "weka",
            Self::Jsonl => "jsonl",
        }
    }

    /// Guesses from the beginning of a file; `None` if it looks like none of them.
    #[must_use]
    pub fn guess(head: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(head);
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let first = text.lines().next()?;
        if first.starts_with('{') {
            // Keys are looked for beyond the first line too: a JSON document may be laid out over many.
            return if first.contains("\"arrival_s\"") {
                Some(Self::Jsonl)
            } else if first.contains("\"input_length\"") {
                Some(Self::Mooncake)
            } else if text.contains("\"requests\"") && text.contains("\"block_size\"") {
                Some(Self::Weka)
            } else {
                None
            };
        }
        let columns: Vec<&str> = first.split(',').map(str::trim).collect();
        let has = |all: &[&str]| all.iter().all(|name| columns.contains(name));
        if has(&["TIMESTAMP", "ContextTokens", "GeneratedTokens"]) {
            Some(Self::Azure)
        } else if has(&["Timestamp", "Request tokens", "Response tokens"]) {
            Some(Self::Burstgpt)
        } else if has(&["trace", "agent", "t_s", "input_tokens", "cached_tokens", "output_tokens"]) {
            Some(Self::Weka)
        } else {
            None
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| WorkloadError::Parameter {
            name: "format",
            problem: format!("`{text}` is none of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Format;

    #[test]
    fn formats_are_told_apart_by_content() {
        for (head, format) in [
            ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n", Some(Format::Azure)),
            ("\u{feff}TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", Some(Format::Azure)),
            ("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}\n", Some(Format::Mooncake)),
            ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", Some(Format::Burstgpt)),
            ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n", Some(Format::Burstgpt)),
            ("trace,agent,t_s,input_tokens,cached_tokens,output_tokens,model\n", Some(Format::Weka)),
            ("{\n  \"id\": \"a\",\n  \"block_size\": 64,\n  \"requests\": []}", Some(Format::Weka)),
            ("\n{\"output_tokens\":1,\"arrival_s\":0,\"input_tokens\":1}", Some(Format::Jsonl)),
            ("{\"prompt\":\"hello\"}", None),
            ("a,b,c\n", None),
            ("", None),
        ] {
            assert_eq!(Format::guess(head.as_bytes()), format, "{head}");
        }
    }

    #[test]
    fn names_round_trip() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
        }
        assert_eq!("csv".parse::<Format>().unwrap_err().to_string(), "format: `csv` is none of azure, mooncake, burstgpt, weka, jsonl");
    }
}
