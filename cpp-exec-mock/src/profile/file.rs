//! Profiles as TOML. Keys that are unknown or missing are errors; a cost is either given or derived from a model on a device.
//!
//! ```toml
//! name = "example"
//! about = "one line"
//! source = "where the numbers come from"
//!
//! [cost]                  # of one stage of `stages`, in nanoseconds
//! stages = 4
//! c0 = 1_000_000          # per batch, the same for every number of stages
//! c0_shared = 0           # per batch, shared out like the layers: reading weights
//! c1 = 6029.675           # c1 to c5 are shared out over the stages; absent = 0
//!
//! [hop]
//! latency_ns = 20_000
//! bytes_per_token = 16_384
//! bytes_per_s = 50_000_000_000
//!
//! [scheduler]
//! scheduler_ns = 50_000
//! return_ns = 20_000
//! block_size = 16
//! num_blocks = 8192       # absent = what fits into the memory of [device]
//! max_batch_tokens = 2048
//! max_requests = 256
//! ```
//!
//! In place of `[cost]`: `per_batch_ns`, `[model]` with the six dimensions and `[device]`, see [`Device`]. With both, the cost is that of `[cost]`, and the
//! device tells how much memory there is. What was measured is in `[published]`, see [`Published`](super::Published).

use std::fmt;
use std::path::Path;

use cpp_sched::{Attos, CostModel, ModelDims};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use super::{Device, Hop, Profile, ProfileError, builtin, derive};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    about: String,
    source: String,
    per_batch_ns: Option<Nanoseconds>,
    model: Option<Dims>,
    device: Option<Device>,
    cost: Option<Cost>,
    hop: Hop,
    scheduler: Sizes,
    /// See [`Published::parse`](super::Published::parse).
    #[serde(default, rename = "published")]
    _published: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dims {
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    intermediate: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    stages: u32,
    #[serde(default)]
    c0: Nanoseconds,
    #[serde(default)]
    c0_shared: Nanoseconds,
    #[serde(default)]
    c1: Nanoseconds,
    #[serde(default)]
    c2: Nanoseconds,
    #[serde(default)]
    c3: Nanoseconds,
    #[serde(default)]
    c4: Nanoseconds,
    #[serde(default)]
    c5: Nanoseconds,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    scheduler_ns: u64,
    return_ns: u64,
    block_size: u32,
    num_blocks: Option<u32>,
    max_batch_tokens: u32,
    max_requests: u32,
}

/// A number of nanoseconds as a TOML integer or float, taken as the decimal number that it was written as.
#[derive(Clone, Copy, Default)]
struct Nanoseconds(Attos);

impl<'de> Deserialize<'de> for Nanoseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Number {
            fn read<E: Error>(text: &str) -> Result<Nanoseconds, E> {
                text.parse()
                    .ok()
                    .filter(|&attos| attos <= Attos::MAX_COEFFICIENT)
                    .map(Nanoseconds)
                    .ok_or_else(|| E::custom(format!("{text} is no number of nanoseconds from 0 to {}", Attos::MAX_COEFFICIENT.to_ns())))
            }
        }
        impl Visitor<'_> for Number {
            type Value = Nanoseconds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of nanoseconds")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Nanoseconds, E> {
                Self::read(&value.to_string())
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Nanoseconds, E> {
                Self::read(&value.to_string())
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Nanoseconds, E> {
                // The shortest decimal that means this float: the digits in the file, up to 15 of them.
                Self::read(&value.to_string())
            }
        }
        deserializer.deserialize_any(Number)
    }
}

impl Profile {
    /// A built-in profile of that name, or else the profile in the TOML file of that path.
    ///
    /// # Errors
    /// There is neither, or the file is wrong.
    pub fn find(name_or_path: &str) -> Result<Self, ProfileError> {
        if let Some(text) = builtin::text(name_or_path) {
            return Self::parse(text, name_or_path);
        }
        if !Path::new(name_or_path).exists() {
            let names = builtin::builtin_names().join(", ");
            let problem = format!("neither a built-in profile ({names}) nor the path of a file");
            return Err(ProfileError::new(name_or_path, None, problem));
        }
        let text = std::fs::read_to_string(name_or_path).map_err(|error| ProfileError::new(name_or_path, None, error.to_string()))?;
        Self::parse(&text, name_or_path)
    }

    /// Reads a profile from TOML. `place` stands for the text in errors.
    ///
    /// # Errors
    /// What is wrong, with the name of the key and its line.
    pub fn parse(text: &str, place: &str) -> Result<Self, ProfileError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() as u64 + 1);
            ProfileError::new(place, line, error.message().replace('\n', " "))
        })?;
        file.check().map_err(|problem| ProfileError::new(place, None, problem))
    }
}

impl File {
    /// A profile, or the first thing that is wrong with the values.
    fn check(self) -> Result<Profile, String> {
        let model = self.model.map(|d| ModelDims::new(d.layers, d.hidden, d.heads, d.kv_heads, d.head_dim, d.intermediate));
        if let Some((name, _)) = model.iter().flat_map(ModelDims::dimensions).find(|(_, value)| *value == 0) {
            return Err(format!("model.{name} must be at least 1"));
        }
        if let Some(problem) = self.device.as_ref().and_then(Device::problem) {
            return Err(problem);
        }
        let sizes = self.scheduler;
        let blocks = sizes.num_blocks.unwrap_or(1);
        for (name, value) in [
            ("block_size", sizes.block_size),
            ("num_blocks", blocks),
            ("max_batch_tokens", sizes.max_batch_tokens),
            ("max_requests", sizes.max_requests),
        ] {
            if value == 0 {
                return Err(format!("scheduler.{name} must be at least 1"));
            }
        }
        if sizes.num_blocks.is_none() && self.device.is_none() {
            return Err("scheduler.num_blocks is missing, and there is no [device] whose memory tells it".to_owned());
        }
        let (per_batch, whole) = match (self.cost, &self.device, &model, self.per_batch_ns) {
            (Some(cost), _, _, None) => cost.whole()?,
            (None, Some(device), Some(model), Some(per_batch)) => (per_batch.0, derived(model, device)?),
            (None, None, ..) => return Err("a profile needs [cost], or per_batch_ns with [model] and [device]".to_owned()),
            (Some(_), ..) => return Err("a cost is either given in [cost] or derived from per_batch_ns, [model] and [device]".to_owned()),
            (None, Some(_), None, _) => return Err("[device] needs [model] to derive a cost".to_owned()),
            (None, Some(_), Some(_), None) => {
                return Err("[device] needs per_batch_ns, the constant that each stage pays for each batch".to_owned());
            }
        };
        Ok(Profile {
            name: self.name,
            about: self.about,
            source: self.source,
            model,
            device: self.device,
            per_batch,
            whole,
            hop: self.hop,
            scheduler_ns: sizes.scheduler_ns,
            return_ns: sizes.return_ns,
            block_size: sizes.block_size,
            fixed_blocks: sizes.num_blocks,
            max_batch_tokens: sizes.max_batch_tokens,
            max_requests: sizes.max_requests,
        })
    }
}

/// The derived cost, if a scheduler takes it.
fn derived(model: &ModelDims, device: &Device) -> Result<CostModel, String> {
    let cost = derive(model, device);
    match cost.coefficients().iter().find(|(_, value)| *value > Attos::MAX_COEFFICIENT) {
        Some((name, _)) => Err(format!("[device] is so slow that {name} is above {} ns", Attos::MAX_COEFFICIENT.to_ns())),
        None => Ok(cost),
    }
}

impl Cost {
    /// The constant per batch, and the rest for the whole model.
    fn whole(self) -> Result<(Attos, CostModel), String> {
        if self.stages == 0 {
            return Err("cost.stages must be at least 1".to_owned());
        }
        let whole = |part: Nanoseconds| Attos(part.0.0 * u128::from(self.stages));
        let mut cost = CostModel::default();
        (cost.c1, cost.c2, cost.c3, cost.c4, cost.c5) = (whole(self.c1), whole(self.c2), whole(self.c3), whole(self.c4), whole(self.c5));
        cost.c0 = whole(self.c0_shared);
        Ok((self.c0.0, cost))
    }
}
