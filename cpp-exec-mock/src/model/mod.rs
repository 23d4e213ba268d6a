//! Model files: a Hugging Face folder of the Llama family (Llama 2 and 3, SmolLM2, Mistral without a window, Qwen2).
//!
//! [`LlamaConfig`] is `config.json`, [`Weights`] the safetensors files, mapped into memory, [`Split`] says which layers a stage gets. The
//! tokenizer is not read here: whoever runs a model on tokens needs none.
//!
//! ```
//! use cpp_exec_mock::model::{LlamaConfig, Split, TinyLlama, Weights};
//!
//! let folder = std::env::temp_dir().join(format!("cpp-model-doc-{}", std::process::id()));
//! TinyLlama::default().write(&folder)?;
//! let config = LlamaConfig::read(&folder)?;
//! let weights = Weights::open(&folder)?;
//! let norm = weights.tensor("model.norm.weight", &[config.hidden_size])?.to_f32()?;
//! assert_eq!(norm.len(), 64);
//! assert_eq!(Split::Even.layers(&config, 3)?, [0..2, 2..3, 3..4]);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod error;
mod fields;
mod header;
mod rope;
mod split;
mod survey;
mod tiny;
mod weights;

pub use config::LlamaConfig;
pub use error::{ModelError, TensorProblem, WeightsProblem};
pub use rope::{Rope, RopeScaling};
pub use split::Split;
pub use survey::Survey;
pub use tiny::TinyLlama;
pub use weights::{Format, Tensor, Weights, from_bf16, to_bf16};
