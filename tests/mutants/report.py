#!/usr/bin/env python3
"""Sums of a run of mutants, and those that no test notices: tests/mutants/report.py [--missed] [FOLDER]"""

import collections
import json
import pathlib
import sys


def main():
    folder = pathlib.Path(next((a for a in sys.argv[1:] if not a.startswith("--")), "target/mutants"))
    mutants = json.loads((folder / "tree/mutants.json").read_text())["mutants"]
    results = {}
    for line in (folder / "results.jsonl").read_text().splitlines():
        entry = json.loads(line)
        results[entry["number"]] = entry["result"]
    by_part = collections.defaultdict(collections.Counter)
    for mutant in mutants:
        state = mutant["state"]
        if state == "built":
            state = results.get(mutant["number"], "to do")
        parts = mutant["file"].split("/")
        part = parts[2] + "/" if len(parts) > 3 else "others"
        by_part[part][state] += 1
        by_part["all"][state] += 1
        if "--missed" in sys.argv and state in ("missed", "not reached"):
            print(f"{mutant['number']}\t{state}\t{mutant['name']}")
    columns = ["caught", "time-out", "missed", "not reached", "to do", "not built", "constant"]
    print("| part | mutants | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 2))
    for part in sorted(by_part, key=lambda p: (p == "all", p)):
        row = by_part[part]
        print(f"| {part} | {sum(row.values())} | " + " | ".join(str(row[c]) for c in columns) + " |")


if __name__ == "__main__":
    main()
