#!/usr/bin/env python3
"""Leaves out one event, wait, check or step of the CUDA device at a time, and sees whether its pipeline fails.

    python3 cpp-exec-cuda/emulation/faults.py [--seeds N] [--places K] [--least PERCENT] [--jobs J] [FILTER]

The places are found in the source: whatever orders things there goes through a few functions (`src/cuda/planted.rs`), and each call of one is a place, so
that a new wait cannot be forgotten. A place is found if the tests that look at its file (LOOKS below), run without it on the stand-ins for driver, cuBLAS and NCCL,
fail (say something else, break, or hang) under one of the seeds 1 to N, which decide how long what takes. Without a fault the same seeds must pass.

--places K: only every so many-th place, so that K are left: a smoke test. FILTER: only places whose name has it. Needs what the tests of the device
need: CPP_CUDA_LIB_DIR (see emulation/README.md). Exit 1 if fewer than PERCENT (95) are found, or something fails without a fault.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
# Calls that order something, by what leaving them out means. `stream.rs` and `planted.rs` define them.
CALLS = [
    (r"\.wait\(&", "a stream waits for an event"),
    (r"\.record\(", "an event is recorded"),
    (r"\.is_complete\(\)", "the host asks an event"),
    (r"\bis_due\(", "a check"),
    (r"\bhappens\(\)", "a step"),
]
# Which tests look at which files, by the beginning of their names: of each program the tests with one of these words. And what one seed takes at most,
# with the machine busy; a pipeline that hangs is found by that.
LOOKS = [
    ("nccl/", 30, {"cpp_exec_cuda": ["nccl::"]}),
    ("cuda/blas.rs", 90, {"cuda_rounding": ["documented_rounding"], "cuda_streams": ["the_same_as_graphs"]}),
    ("", 90, {
        "cuda_edges": [],
        "cuda_streams": ["every_kernel_has_run", "whatever_takes_how_long_each_batch_says_what_one_stage_says"],
    }),
]
PROGRAMS = {name for _, _, tests in LOOKS for name in tests}


def places() -> list[tuple[str, str, str]]:
    """Place (file:line), what stands there, and what it is."""
    found = []
    for path in sorted(SOURCE.rglob("*.rs")):
        # The selftest and the commands order nothing that stages run; the rest of the names define these calls, or are tests.
        if path.relative_to(SOURCE).parts[0] not in ("cuda", "nccl") or path.name in ("stream.rs", "planted.rs", "tests.rs"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            kinds = [what for call, what in CALLS if re.search(call, code) and not code.lstrip().startswith("use ")]
            if len(kinds) > 1:
                # They have one line and would be left out together; but that is a fault as well.
                kinds = [" and ".join(kinds)]
            if kinds:
                found.append((f"{path.relative_to(SOURCE)}:{number}", code.strip(), kinds[0]))
    return found


def build() -> dict[str, str]:
    command = ["cargo", "test", "--locked", "-p", "cpp-exec-cuda", "--features", "planted-faults", "--no-run", "--message-format=json"]
    command += [word for name in sorted(PROGRAMS) for word in (["--lib"] if name == "cpp_exec_cuda" else ["--test", name])]
    done = subprocess.run(command, cwd=ROOT.parent, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    made = {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}
    return {name: made[name] for name in PROGRAMS}


def run(programs: dict[str, str], look: tuple[str, int, dict[str, list[str]]], place: str | None, first: int, last: int) -> tuple[bool, str]:
    """Whether one of them fails, and how."""
    _, seconds, tests = look
    environment = os.environ | {"CPP_STREAM_SEEDS": f"{first}..{last + 1}", "CPP_CUDA_DEVICE": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                                "CPP_FAKE_NCCL": f"seed={first}"}
    if place:
        environment["CPP_PLANTED_FAULT"] = place
    for name, words in tests.items():
        command = [programs[name], *words, "--nocapture", "--test-threads=1"]
        try:
            done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False,
                                  timeout=seconds * (last + 1 - first))
        except subprocess.TimeoutExpired:
            return True, "hangs"
        # CPP_CUDA_DEVICE lets a test fail that has no device.
        if done.returncode == 0 and "running 0 tests" in done.stdout:
            return True, "no test was run:\n" + done.stdout
        if done.returncode != 0:
            text = done.stdout + done.stderr
            panics = [part.split("\n")[0] for part in re.findall(r"panicked at [^\n]*\n([^\n]*)", text)]
            told = [part for part in panics if part.startswith("seed ")] or panics
            return True, (told[0] if told else f"ends with {done.returncode}")[:110]
    return False, ""


def judge(programs: dict[str, str], place: str, seeds: int) -> tuple[int, str]:
    """The seed that finds it, 0 if none does; and how."""
    look = next(look for look in LOOKS if place.startswith(look[0]))
    for seed in range(1, seeds + 1):
        failed, how = run(programs, look, place, seed, seed)
        if failed:
            return seed, how
    return 0, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--places", type=int)
    parser.add_argument("--least", type=float, default=95)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("filter", nargs="?", default="")
    options = parser.parse_args()
    every = [place for place in places() if options.filter in place[0]]
    chosen = every
    if options.places and options.places < len(every):
        chosen = [every[at * len(every) // options.places] for at in range(options.places)]
    tests, begun = build(), time.monotonic()
    for look in LOOKS:
        if any(place.startswith(look[0]) for place, _, _ in chosen):
            failed, how = run(tests, look, None, 1, options.seeds)
            if failed:
                print(f"without a fault it fails: {how}")
                return 1
    print(f"without a fault: {options.seeds} seeds pass")
    found = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda place: judge(tests, place[0], options.seeds), chosen)
        for (place, code, what), (seed, how) in zip(chosen, results):
            found += seed > 0
            print(f"{place} ({what}): {f'found by seed {seed}: {how}' if seed else 'NOT FOUND: ' + code}", flush=True)
    share = 100 * found / max(1, len(chosen))
    print(f"{found} of {len(chosen)} places found ({share:.0f} %), of {len(every)} in the source, within {options.seeds} seeds; "
          f"{time.monotonic() - begun:.0f} s")
    return 0 if chosen and share >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
