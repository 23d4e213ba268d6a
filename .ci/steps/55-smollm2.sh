#!/usr/bin/env bash
# a real model, SmolLM2-135M, over pipeline stages: the tokens of one unchunked pass, and the answer that the README promises
source "$(dirname "$0")/../lib.sh"
need python3 python3
python3 -c 'import venv, ensurepip' 2>/dev/null || need pip3 python3-venv

model=$cache/smollm2/model
CPP_CACHE=$cache run bash scripts/make-smollm2.sh "$model"
CPP_SMOLLM2=$model run cargo test --release --locked -p cpp-exec-mock --test smollm2 -- --ignored --test-threads 1

run cargo build --release --locked --bin cpp-run
for stages in 1 2 4; do
    answer=$(run target/release/cpp-run generate --model "$model" --device cpu --stages $stages --max-batch-tokens 8 --prompt "What is the capital of France?")
    [ "$answer" = "The capital of France is Paris." ] || { echo "over $stages stages: $answer"; exit 1; }
done
run target/release/cpp-run doctor --model "$model"
