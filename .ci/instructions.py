"""Instructions that a step of the kernel takes, counted by callgrind; see tests/examples/instructions.rs for the cases.

  python3 .ci/instructions.py BINARY            compares with .ci/instructions.txt; exit 1 if a case takes over 5 % more
  python3 .ci/instructions.py BINARY --write    writes what was counted there

Counts do not depend on what else the machine does. They do depend a little on the compiler and on the processor (copies of memory), so that a
new compiler may want the file written anew.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LIMIT = 1.05
FILE = pathlib.Path(__file__).with_name("instructions.txt")
# Case, steps of the shorter and of the longer run, what a step is divided by.
CASES = [
    ("decode-16", 200, 400, 16),
    ("decode-256", 96, 192, 256),
    ("decode-1024", 48, 96, 1024),
    ("decode-4096", 16, 32, 4096),
    ("lockstep-256", 96, 192, 256),
    ("waiting-10000", 96, 192, 256),
    ("waiting-100000", 96, 192, 256),
    ("abort-100000", 1000, 2000, 1),
    ("submit-8192", 8, 16, 8192),
    ("submit-131072", 2, 4, 131072),
    ("prefill", 500, 1000, 1),
    ("prefill", 3000, 3500, 1),
]


def callgrind(binary, case, steps, out, *options):
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, binary, case, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stderr


def total(binary, case, steps):
    return int(re.search(r"Collected : (\d+)", callgrind(binary, case, steps, "/dev/null"))[1])


def each_step(binary, case, steps):
    """Instructions of every single step."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        callgrind(binary, case, steps, out, "--toggle-collect=*:step", "--dump-after=*instructions::step*")
        parts = sorted(pathlib.Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        return [int(re.search(r"^(?:totals|summary): (\d+)", part.read_text(), re.M)[1]) for part in parts]


def main():
    binary, write = sys.argv[1], "--write" in sys.argv[2:]
    known = dict(line.rsplit(maxsplit=1) for line in FILE.read_text().splitlines() if line and line[0] != "#") if FILE.exists() else {}
    lines, worse = [], 0
    for case, short, long, parts in CASES:
        name = f"{case} {short}..{long}"
        count = (total(binary, case, long) - total(binary, case, short)) / (long - short) / parts
        lines.append(f"{name:28} {count:.1f}")
        before = float(known.get(name, "nan"))
        ratio = count / before
        verdict = "MORE" if ratio > LIMIT else ""
        worse += ratio > LIMIT
        print(f"{name:28} {count:>10.1f} instructions, {ratio:>6.3f} of {before:>10.1f} {verdict}")
    # Prompts spread over the block size: no step may stand out. All at one border is shown beside it.
    for case, judged in (("decode-256", True), ("lockstep-256", False)):
        steps = sorted(each_step(binary, case, 64)[-64:])
        ratio = steps[-1] / steps[len(steps) // 2]
        bad = judged and ratio > 3
        worse += bad
        print(f"{case:28} the dearest of 64 steps takes {ratio:.2f} times the median {'MORE THAN 3' if bad else ''}")
    if write:
        head = "# Instructions each, as .ci/instructions.py counts them. Written by it (--write).\n"
        FILE.write_text(head + "\n".join(lines) + "\n")
    elif worse or not known:
        sys.exit(f"{worse} cases take more than is written in {FILE}" if known else f"there is no {FILE}")


main()
