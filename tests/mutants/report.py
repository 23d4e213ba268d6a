#!/usr/bin/env python3
"""What came of the mutants: tests/mutants/report.py [--missed] [--open] [--write DOCS] [FOLDER]

Prints the sums by folder of the kernel. --missed: also those that no test noticed; --open: those of them without an answer; --write: a table
of them with their answers, a file for each folder. Answers stand in answers.tsv beside this file, a rule a line: file, function, part of the
line of code, change (each may be `*`), class, text. The first rule that fits is the answer.
"""

import argparse
import collections
import fnmatch
import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
COLUMNS = ["caught", "time-out", "missed", "not reached", "to do", "not built", "constant"]
HEAD = """# Mutants of `{part}` that no quick test notices

What each is, and why it is not noticed. Written by `tests/mutants/report.py --write`; [mutants.md](../mutants.md) says how they were run
and what the classes mean.
"""


class Mutant:
    def __init__(self, entry, results, sources):
        self.number, self.name, self.file, self.function = entry["number"], entry["name"], entry["file"], entry["function"]
        self.state = results.get(self.number, "to do") if entry["state"] == "built" else entry["state"]
        parts = self.file.split("/")
        self.part = parts[2] if len(parts) > 3 else "others"
        line, rest = re.match(r"[^:]+:(\d+):\d+: (.*)", self.name).groups()
        lines = sources.setdefault(self.file, pathlib.Path(self.file).read_text().splitlines())
        self.code = lines[int(line) - 1].strip()
        change = re.sub(r" in " + re.escape(self.function) + "$", "", rest)
        change = change.replace(f"replace {self.function} ", "").replace("replace match guard ", "guard ").replace("replace ", "").replace(" with ", " → ", 1)
        self.change = re.sub(r"^(-> .* |)with ", "→ ", re.sub(r"^-> .* → ", "→ ", change))

    def answer(self, rules):
        for file, function, code, change, kind, text in rules:
            if not fnmatch.fnmatch(self.file.removeprefix("cpp-sched/src/"), file) or (function != "*" and not self.function.endswith(function)):
                continue
            if (code == "*" or code in self.code) and (change == "*" or change in self.change):
                return kind, text
        return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--missed", action="store_true")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("folder", nargs="?", default="target/mutants", type=pathlib.Path)
    options = parser.parse_args()
    results = {}
    for line in (options.folder / "results.jsonl").read_text().splitlines():
        entry = json.loads(line)
        results[entry["number"]] = entry["result"]
    rules = [line.split("\t") for line in (HERE / "answers.tsv").read_text().splitlines() if line and not line.startswith("#")]
    sources = {}
    mutants = [Mutant(entry, results, sources) for entry in json.loads((options.folder / "tree/mutants.json").read_text())["mutants"]]
    left = [(mutant, mutant.answer(rules)) for mutant in mutants if mutant.state in ("missed", "not reached")]
    for mutant, answer in left:
        if options.missed or (options.open and answer is None):
            print(f"{mutant.number}\t{mutant.file.removeprefix('cpp-sched/src/')}\t{mutant.function}\t{mutant.change}\t{mutant.code}\t{answer or ''}")
    if options.write:
        write(options.write, left)
    by_part = collections.defaultdict(collections.Counter)
    for mutant in mutants:
        by_part[mutant.part][mutant.state] += 1
        by_part["all"][mutant.state] += 1
    print("| part | mutants | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 2))
    for part in sorted(by_part, key=lambda p: (p == "all", p)):
        row = by_part[part]
        print(f"| {part} | {sum(row.values())} | " + " | ".join(str(row[c]) for c in COLUMNS) + " |")
    print(collections.Counter(answer[0] if answer else "open" for _, answer in left))


def write(docs, left):
    """Mutants of one line with one answer share a row."""
    docs.mkdir(parents=True, exist_ok=True)
    files = collections.defaultdict(lambda: collections.defaultdict(dict))
    for mutant, answer in left:
        row = (mutant.function, mutant.code, answer or ("open", "not looked at yet"))
        files[mutant.part][mutant.file].setdefault(row, []).append(mutant.change)
    for part, of_part in files.items():
        text = HEAD.format(part=part)
        for file, rows in sorted(of_part.items()):
            text += f"\n## {file.removeprefix('cpp-sched/src/')}\n\n| function | code | change | answer |\n|---|---|---|---|\n"
            cell = lambda code: "`" + code.replace("|", "\\|") + "`"
            for (function, code, (kind, why)), changes in rows.items():
                short = code if len(code) <= 90 else code[:87] + "…"
                text += f"| {cell(function)} | {cell(short)} | {', '.join(cell(c) for c in changes)} | {kind}: {why} |\n"
        (docs / f"{part}.md").write_text(text)


if __name__ == "__main__":
    main()
