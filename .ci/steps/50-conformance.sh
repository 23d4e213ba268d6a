#!/usr/bin/env bash
# every conformance scenario, judged by the checker that knows nothing of the implementation
source "$(dirname "$0")/../lib.sh"
need python3 python3

run cargo build --release --locked --bin cpp-sim
scenarios=tests/conformance/scenarios

# LATER.txt lists scenarios, a file name each, whose features come later. They run too: one that passes has no place in the list.
now=()
later=()
for file in "$scenarios"/*.json; do
    if grep -qxF "$(basename "$file")" <(sed 's/ *#.*//' tests/conformance/LATER.txt 2>/dev/null || true); then
        later+=("$file")
    else
        now+=("$file")
    fi
done
judge() {
    python3 tests/conformance/check.py --run 'target/release/cpp-sim scenario' "$@"
}

echo "${#now[@]} scenarios that must pass, ${#later[@]} of later features"
[ ${#now[@]} -gt 0 ] || { echo "there are no scenarios in $scenarios"; exit 1; }
result=0
judge "${now[@]}" || result=1
for file in "${later[@]}"; do
    if judge "$file" >/dev/null; then
        echo "$file passes: take it off tests/conformance/LATER.txt"
        result=1
    fi
done

# The negative control: the checker finds fault with a log in which one token is another.
sample=$scenarios/001-one-request.json
target/release/cpp-sim scenario "$sample" >target/ci/log.jsonl
run python3 tests/conformance/check.py "$sample" target/ci/log.jsonl
sed -E '0,/"token": ?[0-9]+/s//"token":1/' target/ci/log.jsonl >target/ci/forged.jsonl
if cmp -s target/ci/log.jsonl target/ci/forged.jsonl || python3 tests/conformance/check.py "$sample" target/ci/forged.jsonl; then
    echo "the checker accepts a log with a wrong token"
    result=1
fi
exit $result
