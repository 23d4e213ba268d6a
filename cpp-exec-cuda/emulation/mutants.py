#!/usr/bin/env python3
"""Plants a fault in the source of a kernel, one at a time, and sees whether the tests find it.

    python3 cpp-exec-cuda/emulation/mutants.py OUT [SEEDS]

OUT is where build.sh has built the tests. Each fault is one place of one kernel, as a mistake would be: a wrong index of a fragment, a mask that is
off by one, a factor left out. Exit 1 if a mutant passes (or its place is no longer in the source).
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Test, kernel, what is there, what is put there.
MUTANTS = [
    ("prefill", "attention.cuh", "column + i < visible[half]", "column + i <= visible[half]"),
    ("prefill", "attention.cuh", "float sum = seen.sum[half] * fade;", "float sum = seen.sum[half];"),
    ("prefill", "attention.cuh", "seen.out[tile][2 * half + 1] *= fade;", ""),
    ("decode", "attention.cuh", "most == minus_infinity() ? 0.0f : most", "most"),
    ("decode", "attention.cuh", "a[1] = round_bf16x2(first[2], first[3]);", "a[1] = round_bf16x2(second[0], second[1]);"),
    ("prefill", "attention.cuh", "(key & ((1 << block_shift) - 1))) * DIM", "(key & (1 << block_shift))) * DIM"),
    ("prefill", "attention_prefill.cu", "multiply_16x8x16(score[tile], query[step + 1], b[2], b[3]);",
     "multiply_16x8x16(score[tile], query[step + 1], b[3], b[2]);"),
    ("prefill", "attention_prefill.cu", "query[step][half + 2] = token < row.len", "query[step][half + 2] = token <= row.len"),
    ("prefill", "attention_prefill.cu", "lane / 16 * 8]", "lane / 8 % 2 * 8]"),
    ("prefill", "attention_prefill.cu", "first_key + key < end;", "true;"),
    ("prefill", "attention_prefill.cu", "multiply_16x8x16(out[tile + 1], a, b[2], b[3]);", "multiply_16x8x16(out[tile + 1], a, b[0], b[1]);"),
    ("prefill", "attention_prefill.cu", "if (first_key + PREFILL_KEYS < end)", "if (first_key + PREFILL_KEYS <= end)"),
    ("decode", "attention_decode.cu", "if (split.begin >= split.end)", "if (split.begin > split.end)"),
    ("decode", "attention_decode.cu", "own_row + 8 * half >= wanted", "own_row + 8 * half >= wanted - 1"),
    ("decode", "attention_decode.cu", "i % 2 == 0 ? 0x5410 : 0x7632", "0x5410"),
    ("decode", "attention_decode.cu", "i % 2 + i / 2 * 8;", "i % 2 * 8 + i / 2;"),
    ("decode", "attention_decode.cu", "query[2 * chunk + step][half + 2] = eight.pair[2 * step + 1];",
     "query[2 * chunk + step][half + 2] = eight.pair[2 * step];"),
    ("decode", "attention_decode.cu", "min(row.start + own_row / group + 1, split.end)", "split.end"),
    ("decode", "attention_decode.cu", "threadIdx.x % 4 * 2 * EACH + fragment % EACH", "threadIdx.x % 4 * EACH + fragment % EACH"),
    ("decode", "attention_decode.cu", "weights += seen_weight[place * 2 + 1] * fade;", "weights += seen_weight[place * 2 + 1];"),
    ("rows", "rope.cu", "second[j] * cosine + first[j] * sine", "second[j] * cosine - first[j] * sine"),
    ("rows", "rope.cu", "bf16* to = head < heads ? row + column", "bf16* to = head <= heads ? row + column"),
    ("rows", "norm.cu", "widen8(sum, rounded);", ""),
    ("rows", "common.cuh", "lane < THREADS / WARP", "lane < THREADS / WARP - 1"),
    ("rows", "copy.cu", "blockIdx.y) * 2 + blockIdx.z", "blockIdx.y) + blockIdx.z"),
    ("sampling", "argmax.cu", "b.token < a.token", "b.token > a.token"),
    ("sampling", "candidates.cu", "bits & 0x80000000u ? ~bits : bits | 0x80000000u", "bits | 0x80000000u"),
    ("sampling", "candidates.cu", "counts[digit] < left", "counts[digit] <= left"),
]


def judge(number: int, out: pathlib.Path, seeds: str) -> tuple[str, bool]:
    test, name, old, new = MUTANTS[number]
    folder = out / f"mutant-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    kernels = folder / "kernels"
    shutil.copytree(HERE.parent / "kernels", kernels)
    text = (kernels / name).read_text()
    label = f"{name}: {old}  ->  {new or '(nothing)'}"
    if text.count(old) != 1:
        return f"{label}: is {text.count(old)} times in the source", False
    (kernels / name).write_text(text.replace(old, new))
    environment = os.environ | {"KERNELS": str(kernels), "TESTS": test, "COMMON": str(out)}
    built = subprocess.run(["bash", str(HERE / "build.sh"), str(folder)], env=environment, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        return f"{label}: does not compile\n{built.stderr}", False
    run = subprocess.run([str(folder / "kernels-test"), seeds, "1", "cases"], capture_output=True, text=True, check=False, timeout=300)
    found = [line for line in (run.stdout + run.stderr).splitlines() if "FAILED" in line]
    shutil.rmtree(folder)
    return f"{label}: {'found: ' + found[0] if found else 'NOT FOUND'}", run.returncode != 0 and bool(found)


def main() -> int:
    out, seeds = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "20"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda number: judge(number, out, seeds), range(len(MUTANTS))))
    for text, _ in results:
        print(text)
    found = sum(good for _, good in results)
    print(f"{found} of {len(results)} mutants found")
    return 0 if found == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
