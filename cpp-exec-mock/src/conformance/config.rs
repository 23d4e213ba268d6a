//! The `config` object of a scenario.

use cpp_sched::{
    Admission, Attos, Balance, Chunking, Config, ConfigError, CostModel, ModelDims, Pipelining, PolicyKind, PreemptedOutput, Role,
};
use serde_json::Value;

use super::fields::{Fields, ScenarioError, TIME};

const KNOWN: &[&str] = &[
    "block_size",
    "num_blocks",
    "max_batch_tokens",
    "max_batch_requests",
    "max_requests",
    "max_model_len",
    "stages",
    "max_in_flight",
    "pipelining",
    "policy",
    "admission",
    "prefix_caching",
    "async_scheduling",
    "chunking",
    "chunks_per_batch",
    "cost",
    "model",
    "balance",
    "role",
    "preempted_output",
];

const PIPELINING: &[(&str, Pipelining)] = &[("chunk", Pipelining::Chunk), ("request", Pipelining::Request), ("none", Pipelining::None)];
const POLICY: &[(&str, PolicyKind)] = &[
    ("fcfs", PolicyKind::Fcfs),
    ("priority", PolicyKind::Priority),
    ("edf", PolicyKind::Edf),
    ("srpf", PolicyKind::Srpf),
    ("lars", PolicyKind::Lars),
    ("fair", PolicyKind::Fair),
];
const ADMISSION: &[(&str, Admission)] =
    &[("reserve_prompt", Admission::ReservePrompt), ("lazy", Admission::Lazy), ("no_evict", Admission::NoEvict)];
const BALANCE: &[(&str, Balance)] = &[("off", Balance::Off), ("count", Balance::Count), ("cost", Balance::Cost)];
const ROLE: &[(&str, Role)] = &[("unified", Role::Unified), ("prefill", Role::Prefill), ("decode", Role::Decode)];
const PREEMPTED_OUTPUT: &[(&str, PreemptedOutput)] = &[("deliver", PreemptedOutput::Deliver), ("drop", PreemptedOutput::Drop)];

/// Reads and validates the whole configuration.
pub(super) fn read(value: &Value) -> Result<Config, ScenarioError> {
    let fields = Fields::of(value, "config", KNOWN)?;
    let mut config = Config::default();
    let counts = [
        ("block_size", &mut config.block_size),
        ("num_blocks", &mut config.num_blocks),
        ("max_batch_tokens", &mut config.max_batch_tokens),
        ("max_batch_requests", &mut config.max_batch_requests),
        ("max_requests", &mut config.max_requests),
        ("stages", &mut config.stages),
        ("chunks_per_batch", &mut config.chunks_per_batch),
    ];
    for (key, field) in counts {
        *field = fields.count(key)?.unwrap_or(*field);
    }
    config.max_model_len = fields.count("max_model_len")?;
    config.max_in_flight = fields.count("max_in_flight")?;
    config.pipelining = fields.choice("pipelining", PIPELINING)?.unwrap_or_default();
    config.policy = fields.choice("policy", POLICY)?.unwrap_or_default();
    config.admission = fields.choice("admission", ADMISSION)?.unwrap_or_default();
    config.balance = fields.choice("balance", BALANCE)?.unwrap_or_default();
    config.role = fields.choice("role", ROLE)?.unwrap_or_default();
    config.preempted_output = fields.choice("preempted_output", PREEMPTED_OUTPUT)?.unwrap_or_default();
    config.prefix_caching = fields.boolean("prefix_caching")?.unwrap_or_default();
    config.async_scheduling = fields.boolean("async_scheduling")?.unwrap_or_default();
    config.chunking = fields.get("chunking").map(chunking).transpose()?.unwrap_or_default();
    config.cost = fields.get("cost").map(cost).transpose()?;
    config.model = fields.get("model").map(model).transpose()?;
    config.validate().map_err(|error| named(&fields, error))?;
    Ok(config)
}

fn chunking(value: &Value) -> Result<Chunking, ScenarioError> {
    #[derive(Clone, Copy)]
    enum Kind {
        Tokens,
        Cost,
        Adaptive,
    }
    let fields = Fields::open(value, "config.chunking")?;
    fields.need("kind")?;
    match fields.choice("kind", &[("tokens", Kind::Tokens), ("cost", Kind::Cost), ("adaptive", Kind::Adaptive)])? {
        Some(Kind::Cost) => {
            fields.only(&["kind", "target_ns", "align", "min"])?;
            fields.need("target_ns")?;
            let target_ns = fields.whole("target_ns", 1..=*TIME.end())?.unwrap_or_default();
            Ok(Chunking::Cost { target_ns, align: fields.count("align")?.unwrap_or(1), min: fields.count("min")?.unwrap_or(1) })
        }
        Some(Kind::Adaptive) => fields.only(&["kind"]).map(|()| Chunking::Adaptive),
        Some(Kind::Tokens) | None => {
            fields.only(&["kind", "max"])?;
            Ok(Chunking::Tokens { max: fields.count("max")? })
        }
    }
}

fn cost(value: &Value) -> Result<CostModel, ScenarioError> {
    let fields = Fields::of(value, "config.cost", &["c0", "c1", "c2", "c3", "c4", "c5"])?;
    let coefficient = |key| match fields.number(key)? {
        Some(text) => match text.parse::<Attos>() {
            Ok(value) if value <= Attos::MAX_COEFFICIENT => Ok(value),
            _ => Err(fields.error(key, format!("must be a number of nanoseconds from 0 to 1e12, is {text}"))),
        },
        None => Ok(Attos::ZERO),
    };
    let mut model = CostModel::default();
    model.c0 = coefficient("c0")?;
    model.c1 = coefficient("c1")?;
    model.c2 = coefficient("c2")?;
    model.c3 = coefficient("c3")?;
    model.c4 = coefficient("c4")?;
    model.c5 = coefficient("c5")?;
    Ok(model)
}

fn model(value: &Value) -> Result<ModelDims, ScenarioError> {
    let fields = Fields::of(value, "config.model", &["layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate"])?;
    Ok(ModelDims::new(
        fields.need_count("layers")?,
        fields.need_count("hidden")?,
        fields.need_count("heads")?,
        fields.need_count("kv_heads")?,
        fields.need_count("head_dim")?,
        fields.need_count("intermediate")?,
    ))
}

/// What the kernel refuses, under the key that it is about.
fn named(fields: &Fields<'_>, error: ConfigError) -> ScenarioError {
    let key = match error {
        ConfigError::Zero { field } | ConfigError::TooLarge { field, .. } => field,
        ConfigError::NeedsCost { .. } => "cost",
        ConfigError::LazyPrefill => "admission",
        _ => return ScenarioError::new("config", error.to_string()),
    };
    fields.error(key, error.to_string())
}
