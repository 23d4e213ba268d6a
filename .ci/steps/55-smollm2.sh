#!/usr/bin/env bash
# a real model, SmolLM2-135M, over pipeline stages: the tokens of one unchunked pass, and the answer that the README promises
source "$(dirname "$0")/../lib.sh"
need python3 python3
python3 -c 'import venv, ensurepip' 2>/dev/null || need pip3 python3-venv

model=$cache/smollm2/model
CPP_CACHE=$cache run bash scripts/make-smollm2.sh "$model"
# Over threads, and over processes that are killed in between. Both packages at once, so that what they share is compiled once;
# cpp-run, which the tests start, is built with them (built by itself it would be compiled anew, with fewer features of what it depends on).
CPP_SMOLLM2=$model run cargo test --profile quick --locked -p cpp-exec-mock -p cpp-exec-cuda --test smollm2 -- --ignored --test-threads 1

question=(generate --model "$model" --device cpu --max-batch-tokens 8 --prompt "What is the capital of France?")
paris() {
    [ "$2" = "The capital of France is Paris." ] || { echo "over $1: $2"; exit 1; }
}
for stages in 1 2 4; do
    paris "$stages stages" "$(run target/quick/cpp-run "${question[@]}" --stages $stages)"
    paris "$stages processes" "$(run target/quick/cpp-run "${question[@]}" --stages $stages --processes)"
done
# As a launcher starts them: the same command twice, and who is who in variables.
CPP_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') WORLD_SIZE=2 MASTER_PORT=29417
export CPP_SECRET WORLD_SIZE MASTER_PORT
RANK=1 run target/quick/cpp-run "${question[@]}" --processes=launched &
paris "two ranks" "$(RANK=0 run target/quick/cpp-run "${question[@]}" --processes=launched)"
wait $!
unset CPP_SECRET WORLD_SIZE MASTER_PORT
run target/quick/cpp-run doctor --model "$model"
