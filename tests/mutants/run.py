#!/usr/bin/env python3
"""Runs the mutants that stand together in one build (see src/main.rs) and says which ones no test notices.

    tests/mutants/run.py [--pass 1|2|3] [--jobs N] [--only FILE-OR-NUMBER ...] [--again] [FOLDER]

FOLDER (target/mutants) holds `tree`, the copy. Builds its test programs; runs each of them once without a mutant, which must pass, and notes
which test comes to which mutant; then, for each mutant, runs the tests that come to it, until one fails. Pass 1 takes the quick programs;
pass 2 gives the mutants that are left to slower ones, pass 3 to the slowest and to more random worlds. What is known stands in `results.jsonl`, a line a mutant and
pass, so that a run can be stopped and gone on with. `--again` judges mutants anew that were missed before (after new tests). `report.py` has the sums.

A test program that takes more than five times its processor time and half a second has noticed the mutant by time-out.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import threading
import time

TESTS = "cpp-sched-tests"
# Programs of random worlds, and how many in each pass (0: not in this pass).
RANDOM = {
    "property": (12, 300, 4000), "reference_model": (12, 300, 4000), "hostile": (12, 300, 4000), "determinism": (8, 0, 40),
    "unreliable": (0, 0, 200), "mirror": (0, 0, 200),
}
# The passes of the others that are not in the first; 0: judges nothing that a mutant could change.
PASSES = {
    "crate_graph": 0, "features": 0, "memory": 0, "allocation": 0, "cpp_sched_tests": 0,
    "conformance": 2, "journal": 2, "bad_input": 2,
    "snapshot": 3, "limits": 3, "malformed": 3, "exhaustive": 3, "planner_calibrator": 3,
}
# In the first pass these take long for what they find elsewhere than in the folders that they are about; the second pass runs them for all.
ABOUT = {"planner": ("planner", "queue"), "policies": ("policy", "queue")}


class Program:
    def __init__(self, executable, package, name, kind):
        self.executable, self.package, self.name = executable, package, name
        self.kind = kind
        self.key = f"{package}/{name}"
        self.cpu = 0.0
        self.reached = {}
        self.tests = 0
        self.kills, self.seconds = 0, 0.0

    def cases(self, which):
        return RANDOM.get(self.name, (0, 0, 0))[which - 1]

    def in_pass(self, which):
        if self.name in ABOUT:
            return which < 3
        return self.cases(which) > 0 if self.name in RANDOM else PASSES.get(self.name, 1) == which

    def is_for(self, which, mutant):
        return which > 1 or mutant["file"].split("/")[2] in ABOUT.get(self.name, (mutant["file"].split("/")[2],))


def build(tree):
    target = (tree / "../build").resolve()
    command = ["cargo", "test", "--no-run", "--message-format", "json", "--config=profile.dev.debug=0", "-p", "cpp-sched", "-p", TESTS, "--all-features", "--tests"]
    made = subprocess.run(command, cwd=tree, env=dict(os.environ, CARGO_TARGET_DIR=str(target)), stdout=subprocess.PIPE, text=True, check=True)
    programs = []
    for line in made.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable") and message["profile"]["test"]:
            package = pathlib.Path(message["manifest_path"]).parent
            name = TESTS if package.name == "tests" else package.name
            if message["target"]["kind"] != ["bench"]:
                programs.append((Program(message["executable"], name, message["target"]["name"], message["target"]["kind"][0]), package))
    return programs


class Runner:
    def __init__(self, folder, which, jobs):
        self.folder, self.which, self.jobs = folder, which, jobs
        self.tree = folder / "tree"
        self.programs = []

    def run(self, program, package, mutant, tests=None, cpu=None):
        """Exit status (negative: signal), and seconds of the processor."""
        env = dict(os.environ, CPP_MUTANT=str(mutant), CARGO_MANIFEST_DIR=str(package), PROPTEST_RNG_SEED="20261", RUST_BACKTRACE="0")
        cases = program.cases(self.which)
        if cases:
            env["PROPTEST_CASES"] = str(cases)
        limit = 900 if cpu is None else 5 * cpu + 0.5

        def limits():
            # Counts time of the processor, and goes on in the program that is run: SIGPROF ends it.
            signal.setitimer(signal.ITIMER_PROF, limit)
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.nice(19 - os.nice(0))

        threads = "2" if cpu is None else "1"
        arguments = [program.executable, "--test-threads", threads] + (["--exact", *tests] if tests else [])
        log = subprocess.DEVNULL if cpu is not None else subprocess.PIPE
        child = subprocess.Popen(arguments, cwd=package, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=limits, text=True)
        wall = threading.Timer(100 * limit, child.kill)
        wall.start()
        text = child.stdout.read() if child.stdout else ""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall.cancel()
        return child.returncode, usage.ru_utime + usage.ru_stime, text

    def base(self):
        """Each program without a mutant. Kept from one run to the next as long as the program is the same."""
        kept, path = {}, self.folder / f"base{self.which}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        for program, package in build(self.tree):
            if not program.in_pass(self.which):
                continue
            built = f"{program.executable} {os.stat(program.executable).st_mtime_ns}"
            kept[built] = before.get(built) or self.measure(program, package)
            program.cpu, names, reached = kept[built]
            program.tests = len(names)
            program.reached = {int(site): [names[i] for i in tests] for site, tests in reached.items()}
            print(f"{program.cpu:7.2f} s {program.tests:4} tests {len(program.reached):5} places  {program.key}", flush=True)
            self.programs.append((program, package))
        path.write_text(json.dumps(kept))

    def measure(self, program, package):
        record = self.folder / "record.txt"
        record.unlink(missing_ok=True)
        status, _, text = self.run(program, package, f"record:{record}")
        if status != 0:
            print(f"{program.key} fails without a mutant, while it records:\n{text[-3000:]}", file=sys.stderr)
        names = sorted(set(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. ok", text, re.M)))
        place, reached, everyone = {name: i for i, name in enumerate(names)}, {}, set()
        for line in record.read_text().splitlines() if record.exists() else []:
            test, site = line.split("\t")
            # A thread that a test starts has no name, or one of its own: then every test may be meant.
            (reached.setdefault(site, set()).add(place[test]) if test in place else everyone.add(site))
        reached |= {site: place.values() for site in everyone}
        status, cpu, text = self.run(program, package, 0)
        if status != 0:
            sys.exit(f"{program.key} fails without a mutant:\n{text[-3000:]}")
        return [cpu, names, {site: sorted(tests) for site, tests in reached.items()}]

    def judge(self, mutant):
        site, begun = mutant["site"], time.time()
        mine = [(p, package) for p, package in self.programs if site in p.reached and p.is_for(self.which, mutant)]
        # Whoever has caught most in a second goes first.
        mine.sort(key=lambda one: -(one[0].kills + 1) / (one[0].seconds + one[0].cpu + 0.05))
        for program, package in mine:
            tests = program.reached[site]
            tests = tests if len(tests) < 0.7 * program.tests else None
            status, seconds, _ = self.run(program, package, mutant["number"], tests, program.cpu)
            program.seconds += seconds
            if status != 0:
                program.kills += 1
                # SIGKILL comes from the clock on the wall.
                result = "time-out" if status in (-signal.SIGPROF, -signal.SIGKILL) else "caught"
                return {"result": result, "by": program.key, "seconds": round(time.time() - begun, 2)}
        return {"result": "missed" if mine else "not reached", "seconds": round(time.time() - begun, 2)}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--pass", dest="which", type=int, default=1, choices=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("folder", nargs="?", default="target/mutants", type=pathlib.Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    results = folder / "results.jsonl"
    known = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        entry = json.loads(line)
        known.setdefault(entry["number"], []).append(entry)
    runner = Runner(folder, options.which, options.jobs)
    runner.base()
    todo = []
    for mutant in json.loads((folder / "tree/mutants.json").read_text())["mutants"]:
        if mutant["state"] != "built":
            continue
        if options.only and not any(o == str(mutant["number"]) or o in mutant["file"] for o in options.only):
            continue
        before = known.get(mutant["number"], [])
        if any(e["result"] in ("caught", "time-out") for e in before):
            continue
        if not options.again and any(e["pass"] == options.which for e in before):
            continue
        todo.append(mutant)
    # What decides comes first.
    first = ["scheduler", "kv", "state", "wire", "journal", "driver", "policy", "queue", "planner"]
    part = lambda mutant: mutant["file"].split("/")[2]
    todo.sort(key=lambda mutant: first.index(part(mutant)) if part(mutant) in first else len(first))
    print(f"{len(todo)} mutants to judge", flush=True)
    lock, counts, begun = threading.Lock(), collections.Counter(), time.time()
    queue = iter(todo)

    def work():
        while time.time() - begun < options.seconds:
            with lock:
                mutant = next(queue, None)
            if mutant is None:
                return
            verdict = runner.judge(mutant)
            with lock, open(results, "a") as out:
                out.write(json.dumps({"number": mutant["number"], "name": mutant["name"], "pass": options.which, **verdict}) + "\n")
                counts[verdict["result"]] += 1
                if sum(counts.values()) % 100 == 0:
                    print(f"{time.time() - begun:6.0f} s {sum(counts.values())} {dict(counts)}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{time.time() - begun:6.0f} s {dict(counts)}")


if __name__ == "__main__":
    main()
