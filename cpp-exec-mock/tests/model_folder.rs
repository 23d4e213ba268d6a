//! What a model folder can have wrong: each gets an error of its own, and its line says where.

#[path = "common/folder.rs"]
mod folder;

use std::fs;
use std::path::Path;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part};
use cpp_exec_mock::model::{Format, LlamaConfig, ModelError, Split, TensorProblem, TinyLlama, Weights, WeightsProblem};
use folder::Folder;
use serde_json::{Value, json};

/// Opens a folder and loads all of it as two stages.
fn load(folder: &Path) -> Result<(), ModelError> {
    let config = LlamaConfig::read(folder)?;
    let weights = Weights::open(folder)?;
    for (stage, layers) in Split::Even.layers(&config, 2)?.into_iter().enumerate() {
        let kv = KvShape { block_size: 4, num_blocks: 2 };
        CpuStage::load(&config, &weights, &Part { stage, stages: 2, layers }, kv, |_| {})?;
    }
    Ok(())
}

/// The error of a tiny model after `damage` was done to its folder.
fn error(tiny: &TinyLlama, damage: impl FnOnce(&Path)) -> ModelError {
    let folder = Folder::new();
    tiny.write(folder.path()).unwrap();
    load(folder.path()).expect("nothing is wrong before the damage");
    damage(folder.path());
    let error = load(folder.path()).expect_err("the damage is found");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.contains(&folder.path().display().to_string()), "one line that says where: {line}");
    error
}

fn set(folder: &Path, field: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    fs::write(path, config.to_string()).unwrap();
}

/// The error when one field of `config.json` is another; null stands for none.
fn with_field(field: &str, value: Value) -> ModelError {
    error(&TinyLlama::default(), |folder| set(folder, field, value))
}

macro_rules! assert_error {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
    };
}

/// As [`TinyLlama`], in two files with an index.
fn sharded() -> TinyLlama {
    TinyLlama { shards: 2, ..TinyLlama::default() }
}

fn edit_index(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("model.safetensors.index.json");
    let mut index = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut index);
    fs::write(path, index.to_string()).unwrap();
}

/// Changes the header of `model.safetensors`; texts of equal length.
fn edit_header(folder: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = folder.join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let at = file.windows(from.len()).position(|bytes| bytes == from.as_bytes()).expect("the text is there");
    file[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(path, file).unwrap();
}

#[test]
fn whole_models_load_in_every_form() {
    for shards in [1, 3] {
        for format in [Format::F32, Format::Bf16] {
            for (tied, qkv_bias) in [(true, false), (false, true)] {
                let folder = Folder::new();
                TinyLlama { shards, format, tied, qkv_bias, ..TinyLlama::default() }.write(folder.path()).unwrap();
                load(folder.path()).unwrap();
                assert_eq!(LlamaConfig::read(folder.path()).unwrap().qkv_bias, qkv_bias);
            }
        }
    }
}

#[test]
fn e01_no_folder() {
    assert_error!(load(Path::new("/nowhere/at/all")).unwrap_err(), ModelError::NoFolder(_));
}

#[test]
fn e02_no_configuration() {
    let error = error(&TinyLlama::default(), |folder| fs::remove_file(folder.join("config.json")).unwrap());
    assert_error!(error, ModelError::Missing { file, .. } if file == "config.json");
}

#[test]
fn e03_configuration_is_not_json() {
    let error = error(&TinyLlama::default(), |folder| fs::write(folder.join("config.json"), "{\n \"hidden_size\": 64,,").unwrap());
    assert_error!(error, ModelError::Json { problem, .. } if problem.contains("line 2"));
}

#[test]
fn e04_configuration_is_no_object() {
    let error = error(&TinyLlama::default(), |folder| fs::write(folder.join("config.json"), "[]").unwrap());
    assert_error!(error, ModelError::Field { field, .. } if field == "the file");
}

#[test]
fn e05_a_field_is_missing() {
    for field in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "model_type"] {
        assert_error!(with_field(field, Value::Null), ModelError::Field { field: named, problem, .. } if named == field && problem == "is missing");
    }
}

#[test]
fn e06_a_field_is_of_another_type_or_out_of_range() {
    for value in [json!("64"), json!(0), json!(-4), json!(1.5), json!(1u64 << 40)] {
        assert_error!(with_field("hidden_size", value), ModelError::Field { field, .. } if field == "hidden_size");
    }
    assert_error!(with_field("rms_norm_eps", json!(0)), ModelError::Field { .. });
    assert_error!(with_field("tie_word_embeddings", json!("yes")), ModelError::Field { .. });
    assert_error!(with_field("eos_token_id", json!("</s>")), ModelError::Field { .. });
}

#[test]
fn e07_heads_cannot_be_shared_out() {
    assert_error!(with_field("num_key_value_heads", json!(3)), ModelError::Field { field, .. } if field == "num_key_value_heads");
}

#[test]
fn e08_hidden_size_cannot_be_shared_out() {
    let error = error(&TinyLlama::default(), |folder| {
        set(folder, "head_dim", Value::Null);
        set(folder, "hidden_size", json!(66));
    });
    assert_error!(error, ModelError::Field { field, .. } if field == "hidden_size");
}

#[test]
fn e09_heads_have_no_pairs() {
    assert_error!(with_field("head_dim", json!(15)), ModelError::Field { field, .. } if field == "head_dim");
}

#[test]
fn e10_another_family() {
    assert_error!(with_field("model_type", json!("gpt2")), ModelError::Unsupported { what, .. } if what.contains("gpt2"));
}

#[test]
fn e11_another_activation() {
    assert_error!(with_field("hidden_act", json!("gelu")), ModelError::Unsupported { what, .. } if what.contains("gelu"));
}

#[test]
fn e12_quantised() {
    let error = with_field("quantization_config", json!({ "bits": 4 }));
    assert_error!(error, ModelError::Unsupported { what, .. } if what == "quantization_config");
}

#[test]
fn e13_other_parts_that_would_change_the_numbers() {
    for (field, value) in [("mlp_bias", json!(true)), ("sliding_window", json!(4096)), ("partial_rotary_factor", json!(0.5))] {
        assert_error!(with_field(field, value), ModelError::Unsupported { what, .. } if what == field);
    }
}

#[test]
fn e14_an_unknown_scaling_of_positions() {
    let error = with_field("rope_scaling", json!({ "rope_type": "dynamic", "factor": 2.0 }));
    assert_error!(error, ModelError::Field { field, problem, .. } if field == "rope_scaling.rope_type" && problem.contains("dynamic"));
}

#[test]
fn e15_a_scaling_lacks_a_number() {
    let error = with_field("rope_scaling", json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0 }));
    assert_error!(error, ModelError::Field { field, .. } if field == "rope_scaling.high_freq_factor");
    assert_error!(with_field("rope_scaling", json!({ "type": "linear" })), ModelError::Field { field, .. } if field == "rope_scaling.factor");
    assert_error!(with_field("rope_scaling", json!("linear")), ModelError::Field { field, .. } if field == "rope_scaling");
}

#[test]
fn e16_no_weights() {
    let error = error(&TinyLlama::default(), |folder| fs::remove_file(folder.join("model.safetensors")).unwrap());
    assert_error!(error, ModelError::Missing { hint, .. } if hint.contains("fetch"));
}

#[test]
fn e17_weights_of_another_kind() {
    let error = error(&TinyLlama::default(), |folder| {
        fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).unwrap();
    });
    assert_error!(error, ModelError::Missing { hint, .. } if hint.contains("convert"));
}

#[test]
fn e18_weights_were_never_fetched() {
    let error = error(&TinyLlama::default(), |folder| {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
        fs::write(folder.join("model.safetensors"), pointer).unwrap();
    });
    assert_error!(error, ModelError::Weights { problem: WeightsProblem::LfsPointer, .. });
}

#[test]
fn e19_weights_are_empty() {
    let error = error(&TinyLlama::default(), |folder| fs::write(folder.join("model.safetensors"), "").unwrap());
    assert_error!(error, ModelError::Weights { problem: WeightsProblem::Short(0), .. });
}

#[test]
fn e20_weights_are_no_safetensors() {
    let error = error(&TinyLlama::default(), |folder| fs::write(folder.join("model.safetensors"), "PK\u{3}\u{4} not a header").unwrap());
    assert_error!(error, ModelError::Weights { problem: WeightsProblem::Header(_), .. });
    let error = self::error(&TinyLlama::default(), |folder| edit_header(folder, "\"dtype\"", "\"dtipe\""));
    assert_error!(error, ModelError::Weights { problem: WeightsProblem::Header(_), .. });
}

#[test]
fn e21_weights_are_cut_off() {
    for keep in [100, 10_000, 50_000] {
        let error = error(&TinyLlama::default(), |folder| {
            let path = folder.join("model.safetensors");
            let file = fs::read(&path).unwrap();
            fs::write(path, &file[..keep]).unwrap();
        });
        assert_error!(error, ModelError::Weights { problem: WeightsProblem::Truncated { found, .. }, .. } if *found == keep as u64);
    }
}

#[test]
fn e22_the_index_is_broken() {
    let error = error(&sharded(), |folder| fs::write(folder.join("model.safetensors.index.json"), "{").unwrap());
    assert_error!(error, ModelError::Json { .. });
}

#[test]
fn e23_the_index_maps_nothing() {
    for map in [Value::Null, json!({}), json!([1])] {
        let error = error(&sharded(), |folder| edit_index(folder, |index| index["weight_map"] = map));
        assert_error!(error, ModelError::Field { field, .. } if field == "weight_map");
    }
}

#[test]
fn e24_the_index_names_no_file() {
    for file in [json!(3), json!("../elsewhere.safetensors"), json!("")] {
        let error = error(&sharded(), |folder| edit_index(folder, |index| index["weight_map"]["model.norm.weight"] = file));
        assert_error!(error, ModelError::Field { field, .. } if field == "weight_map.model.norm.weight");
    }
}

#[test]
fn e25_a_part_is_missing() {
    let error = error(&sharded(), |folder| fs::remove_file(folder.join("model-00002-of-00002.safetensors")).unwrap());
    assert_error!(error, ModelError::Missing { file, .. } if file == "model-00002-of-00002.safetensors");
}

#[test]
fn e26_index_and_parts_do_not_belong_together() {
    let error = error(&sharded(), |folder| {
        edit_index(folder, |index| index["weight_map"]["model.extra.weight"] = json!("model-00001-of-00002.safetensors"));
    });
    assert_error!(error, ModelError::Tensor { problem: TensorProblem::NotInShard, .. });
}

#[test]
fn e27_a_tensor_is_missing() {
    let error = error(&TinyLlama::default(), |folder| set(folder, "num_hidden_layers", json!(5)));
    assert_error!(error, ModelError::Tensor { tensor, problem: TensorProblem::Missing, .. } if tensor.starts_with("model.layers.4."));
}

#[test]
fn e28_the_head_is_missing() {
    let error = with_field("tie_word_embeddings", json!(false));
    assert_error!(error, ModelError::Tensor { tensor, problem: TensorProblem::Missing, .. } if tensor == "lm_head.weight");
}

#[test]
fn e29_a_tensor_has_another_shape() {
    let error = with_field("vocab_size", json!(300));
    assert_error!(error, ModelError::Tensor { problem: TensorProblem::Shape { expected, found }, .. } if (expected[0], found[0]) == (300, 256));
}

#[test]
fn e30_a_tensor_holds_other_numbers() {
    let error = error(&TinyLlama::default(), |folder| edit_header(folder, "\"F32\"", "\"I32\""));
    assert_error!(error, ModelError::Tensor { problem: TensorProblem::Dtype(dtype), .. } if dtype == "I32");
}

#[test]
fn e31_a_number_is_damaged() {
    let error = error(&TinyLlama::default(), |folder| {
        let path = folder.join("model.safetensors");
        let mut file = fs::read(&path).unwrap();
        let end = file.len();
        file[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(path, file).unwrap();
    });
    assert_error!(error, ModelError::Tensor { problem: TensorProblem::NotFinite { .. }, .. });
}

#[test]
fn e32_more_stages_than_layers() {
    let config = TinyLlama::default().config();
    assert_error!(Split::Even.layers(&config, 5).unwrap_err(), ModelError::Stages { stages: 5, layers: 4 });
}

#[test]
fn e33_the_index_leaves_a_tensor_out() {
    let error = error(&sharded(), |folder| {
        edit_index(folder, |index| drop(index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight")));
    });
    assert_error!(error, ModelError::Tensor { tensor, problem: TensorProblem::Missing, .. } if tensor == "model.norm.weight");
}

#[test]
fn e34_a_part_is_damaged() {
    let error = error(&sharded(), |folder| fs::write(folder.join("model-00002-of-00002.safetensors"), "no tensors").unwrap());
    assert_error!(error, ModelError::Weights { path, problem: WeightsProblem::Header(_), .. } if path.ends_with("model-00002-of-00002.safetensors"));
}

#[test]
fn e35_a_head_stands_beside_the_embedding_that_it_should_be() {
    let untied = TinyLlama { tied: false, ..TinyLlama::default() };
    let error = error(&untied, |folder| set(folder, "tie_word_embeddings", json!(true)));
    assert_error!(error, ModelError::Tensor { tensor, problem: TensorProblem::NotTied, .. } if tensor == "lm_head.weight");
}

#[test]
fn e36_tensors_lie_over_each_other() {
    let error = error(&TinyLlama::default(), |folder| {
        let path = folder.join("model.safetensors");
        let mut file = fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&file[8..end]).unwrap();
        let other = header["model.layers.0.input_layernorm.weight"]["data_offsets"].clone();
        header["model.norm.weight"]["data_offsets"] = other;
        let header = header.to_string();
        file.splice(..end, (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()));
        fs::write(path, file).unwrap();
    });
    assert_error!(error, ModelError::Weights { problem: WeightsProblem::Header(problem), .. } if problem.contains("over each other"));
}

#[test]
fn a_survey_tells_everything_at_once() {
    let folder = Folder::new();
    TinyLlama { qkv_bias: true, ..TinyLlama::default() }.write(folder.path()).unwrap();
    let survey = || {
        let config = LlamaConfig::read(folder.path()).unwrap();
        Weights::open(folder.path()).unwrap().survey(&config)
    };
    let whole = survey();
    assert_eq!((whole.needed, whole.problems.len(), whole.unused.len()), (2 + 4 * 12, 0, 0));
    assert_eq!(whole.formats.into_iter().collect::<Vec<_>>(), [(Format::F32, 50)]);
    set(folder.path(), "vocab_size", json!(300));
    set(folder.path(), "num_hidden_layers", json!(3));
    set(folder.path(), "tie_word_embeddings", json!(false));
    let survey = survey();
    assert_eq!((survey.needed, survey.problems.len(), survey.unused.len()), (3 + 3 * 12, 2, 12));
    assert_error!(&survey.problems[0], ModelError::Tensor { problem: TensorProblem::Shape { .. }, .. });
    assert_error!(&survey.problems[1], ModelError::Tensor { problem: TensorProblem::Missing, .. });
}

#[test]
fn ends_of_text_come_from_the_generation_file() {
    let folder = Folder::new();
    TinyLlama::default().write(folder.path()).unwrap();
    assert_eq!(LlamaConfig::read(folder.path()).unwrap().eos, [0]);
    fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [3, 5]}"#).unwrap();
    assert_eq!(LlamaConfig::read(folder.path()).unwrap().eos, [3, 5]);
}
