//! `cpp-sim calibrate` on made-up tables in every format it knows, and on measured ones where `CPP_PROFILES` names their folder.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::TempFile;
use serde_json::Value;

fn calibrate(file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cpp-sim")).arg("calibrate").arg(file).args(["--json", "-"]).output().unwrap()
}

/// The fits of a table that is fitted.
fn fits(file: &Path) -> Vec<Value> {
    let output = calibrate(file);
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

/// A table of `50 us + 2 us a token + 1 ns a pair`, in the columns of each source; sizes are (history, tokens).
fn time_us(history: u64, tokens: u64) -> f64 {
    50.0 + 2.0 * tokens as f64 + 0.001 * (history * tokens + tokens * (tokens + 1) / 2) as f64
}

fn sizes() -> impl Iterator<Item = (u64, u64)> {
    [0, 1024, 4096, 16_384].into_iter().flat_map(|history| [256, 512, 1024, 2048].map(|tokens| (history, tokens)))
}

#[test]
fn prefill_tables_of_each_source_give_the_coefficients_back() {
    type Line = fn(u64, u64, f64) -> String;
    let formats: [(&str, Line); 4] = [
        ("cached_L,new_x,attn_ms,reshape_ms", |l, x, us| format!("{l},{x},{},{}", us * 0.75e-3, us * 0.25e-3)),
        ("system,op,model,new_x,cached_L,kernel_source,latency_ms", |l, x, us| format!("h100,dsa,m,{x},{l},k,{}", us * 1e-3)),
        ("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", |l, x, us| format!("{x},{l},0,0,{us}")),
        ("history,new_tokens,time_ns", |l, x, us| format!("{l},{x},{}", us * 1e3)),
    ];
    for (header, line) in formats {
        let lines: Vec<String> = sizes().map(|(history, tokens)| line(history, tokens, time_us(history, tokens))).collect();
        let file = TempFile::new(".csv", &format!("{header}\n{}\n", lines.join("\n")));
        let fits = fits(&file.0);
        assert_eq!(fits.len(), 1, "{header}");
        for (name, expected) in [("c0", 50_000.0), ("c1", 2000.0), ("c2", 1.0)] {
            let found = number(&fits[0], &format!("/cost/{name}"));
            assert!((found / expected - 1.0).abs() < 0.02, "{header}: {name}={found}");
        }
        assert!(number(&fits[0], "/held_out/worst") < 0.01 && fits[0]["held_out"]["trusted"] == true, "{header}: {}", fits[0]);
    }
}

#[test]
fn token_and_decode_tables_give_the_coefficients_back_by_group() {
    let tokens = [1u64, 8, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
    let by_tokens = |header: &str, line: &dyn Fn(u64, f64) -> String| {
        let lines: Vec<String> = tokens.iter().map(|&x| line(x, 50.0 + 2.0 * x as f64)).collect();
        TempFile::new(".csv", &format!("{header}\n{}\n", lines.join("\n")))
    };
    for file in [
        by_tokens("layer,tokens,time_us", &|x, us| format!("qkv,{x},{us}")),
        by_tokens("system,engine,gemm_dtype,m,n,k,latency_ms", &|x, us| format!("a100,v,bf16,{x},4096,4096,{}", us * 1e-3)),
        by_tokens("gpu,model,tp,tokens,emb_ms,add_ms", &|x, us| format!("a100,m,1,{x},{},{}", us * 0.5e-3, us * 0.5e-3)),
    ] {
        let fits = fits(&file.0);
        assert!((number(&fits[0], "/cost/c0") / 50_000.0 - 1.0).abs() < 0.02 && (number(&fits[0], "/cost/c1") / 2000.0 - 1.0).abs() < 0.02);
        assert!(!fits[0]["group"].as_str().unwrap().is_empty());
    }
    // 10 us, 1 us a decode, 2 ns a token of context.
    let lines: Vec<String> = [1u32, 4, 16, 64]
        .iter()
        .flat_map(|&n| {
            [128u32, 1024, 4096].map(|kv| format!("{n},{kv},{}", (10_000.0 + 1000.0 * f64::from(n) + 2.0 * f64::from(n * kv)) * 1e-6))
        })
        .collect();
    let file = TempFile::new(".csv", &format!("batch,kv_len,attn_ms\n{}\n", lines.join("\n")));
    let fit = &fits(&file.0)[0];
    assert!((number(fit, "/cost/c3") / 2.0 - 1.0).abs() < 0.02 && number(fit, "/errors/worst") < 0.01, "{fit}");
}

#[test]
fn other_tables_are_refused_in_one_line() {
    for text in ["", "a,b\n1,2\n", "tokens,speed\n1,2\n", "name,time_us\nx,2\n", "tokens,time_us\n", "tokens,time_us\nx,2\n"] {
        let file = TempFile::new(".csv", text);
        let output = calibrate(&file.0);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.matches('\n').count(), output.stdout.len()), (Some(2), 1, 0), "{text:?}: {told}");
        assert!(told.contains(file.path()), "{told}");
    }
}

/// Rows are those that the tables' sources state.
#[test]
fn measured_tables_are_read_whole() {
    let Some(folder) = std::env::var_os("CPP_PROFILES") else {
        eprintln!("skipped: set CPP_PROFILES to the folder that holds the measured tables");
        return;
    };
    for (name, rows) in [
        ("vidur_a100_70b_tp2_attn_prefill", 4_418),
        ("vidur_a100_70b_tp2_attn_decode", 10_240),
        ("vidur_mlp_70b_a100_h100_a40", 4_912),
        ("llmservingsim_rtxpro6000_Qwen3-32B_tp1_attention", 19_364),
        ("llmservingsim_rtxpro6000_Qwen3-32B_tp1_dense", 1_520),
        ("aic_gemm_selected", 3_255),
        ("aic_sparse_attention_context_L_to_1M", 6_882),
    ] {
        let path = Path::new(&folder).join(format!("{name}.csv.gz"));
        if !path.exists() {
            eprintln!("skipped: {} does not exist", path.display());
            continue;
        }
        let found: f64 = fits(&path).iter().map(|fit| number(fit, "/errors/rows")).sum();
        assert_eq!(found, f64::from(rows), "{name}");
    }
}
