"""Renders the pages of a folder with headless Chromium and checks what comes of it: python3 .ci/html_report.py FOLDER

FOLDER holds run.html, compare.html, and the JSON of the same runs beside them. For each page: the browser's DOM has every section with its plots,
the browser logged nothing to the console and asked for nothing, each number equals that of the JSON, and a picture of the page has the colours of the light
and of the dark scheme. A page that is made to ask for something must be found out, or the check is worth nothing.
"""

import html.parser
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zlib

SECTIONS = ["summary", "bubbles", "latency", "prompt", "load", "gantt", "batches", "config"]
# Headless, and without what a browser asks for on its own account.
FLAGS = """--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run
--disable-default-apps --disable-extensions --hide-scrollbars --enable-logging=stderr""".split() + ["--host-resolver-rules=MAP * ~NOTFOUND"]
OWN = re.compile(r"^https?://([a-z0-9.-]+\.)?(google|googleapis|gstatic|gvt1|chromium)\.(com|org)(:\d+)?/")


def browse(page, *flags):
    """Stdout, console messages, and addresses asked for."""
    with tempfile.TemporaryDirectory() as profile:
        log = pathlib.Path(profile) / "net.json"
        command = ["chromium", *FLAGS, f"--user-data-dir={profile}/data", f"--log-net-log={log}", *flags, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, timeout=180, check=True)
        text = log.read_text()
    console = [line for line in done.stderr.decode(errors="replace").splitlines() if ":CONSOLE" in line]
    asked = {url for url in re.findall(r'"url":"([^"]+)"', text) if not url.startswith(("file:", "data:", "chrome")) and not OWN.match(url)}
    return done.stdout.decode(), console, asked


class Dom(html.parser.HTMLParser):
    """Sections with the plots and marks in each, and the numbers of the summary."""

    def __init__(self, text):
        super().__init__()
        self.section, self.svgs, self.marks, self.numbers, self.bars = None, {}, {}, {}, {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag == "section":
            self.section = a["id"]
            self.svgs[self.section] = self.marks[self.section] = 0
        elif tag == "svg":
            self.svgs[self.section] += 1
        elif tag in ("path", "rect") and a.get("class"):
            self.marks[self.section] += 1
        if "data-key" in a:
            self.numbers[a["data-run"], a["data-key"]] = a["data-value"]
        if "data-cause" in a:
            self.bars.setdefault((a["data-stage"], a["data-cause"]), []).append(a["data-value"])


def check(page, runs):
    text, console, asked = browse(page, "--dump-dom")
    assert not console, console
    assert not asked, asked
    dom = Dom(text)
    assert list(dom.svgs) == SECTIONS, list(dom.svgs)
    for section, least in {"bubbles": 1, "latency": 3, "prompt": 1, "load": 2, "gantt": 2, "batches": 1}.items():
        assert dom.svgs[section] >= least and dom.marks[section] >= least, (section, dom.svgs, dom.marks)
    for (run, key), value in dom.numbers.items():
        wanted = runs[run]
        for part in key.split("."):
            wanted = wanted[part]
        assert (None if value == "null" else float(value)) == wanted, (run, key, value, wanted)
    assert {run for run, _ in dom.numbers} == set(runs) and len(dom.numbers) >= 25 * len(runs), len(dom.numbers)
    shown = sorted(float(value) for values in dom.bars.values() for value in values)
    fractions = (part for run in runs.values() for stage in run["stages"] for part in stage.values())
    assert shown == sorted(part for part in fractions if part > 0), "the bars are not the fractions of the JSON"
    print(f"{page.name}: {len(text) // 1024} KiB, {len(dom.numbers)} numbers, {sum(dom.svgs.values())} plots, {sum(dom.marks.values())} marks")


def pixels(file):
    """The colours of a PNG with 8 bits a channel, each with how often it is there."""
    data, at, packed = file.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", body[:10])
        if kind == b"IDAT":
            packed += body
        at += length + 12
    step = {2: 3, 6: 4}[colour]
    assert depth == 8
    raw, row, before, counts = zlib.decompress(packed), width * step, bytearray(width * step), {}
    for start in range(0, len(raw), row + 1):
        line, how = bytearray(raw[start + 1 : start + 1 + row]), raw[start]
        for i in range(row) if how else ():
            left, up = line[i - step] if i >= step else 0, before[i]
            corner = before[i - step] if i >= step else 0
            if how == 1:
                line[i] = (line[i] + left) & 255
            elif how == 2:
                line[i] = (line[i] + up) & 255
            elif how == 3:
                line[i] = (line[i] + (left + up) // 2) & 255
            else:
                p = left + up - corner
                nearest = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
                line[i] = (line[i] + nearest) & 255
        for i in range(0, row, step):
            colour = bytes(line[i : i + 3])
            counts[colour] = counts.get(colour, 0) + 1
        before = line
    return counts


def check_picture(page, style, flags, scheme):
    picture = page.with_name(f"{page.stem}-{scheme}.png")
    browse(page, f"--screenshot={picture.resolve()}", "--window-size=900,2600", *flags)
    counts = pixels(picture)
    for name in ["bg", "prompt", "downstream", "dependency"]:
        colour = bytes.fromhex(re.search(rf"--{name}: #(\w+);", style)[1])
        assert counts.get(colour, 0) > 500, f"{page.name}, {scheme}: hardly any of {name}, {counts.get(colour, 0)} pixels"
    print(f"{picture.name}: {len(counts)} colours")


def main():
    folder = pathlib.Path(sys.argv[1])
    run = json.loads((folder / "run.json").read_text())
    check(folder / "run.html", {run["config"]["mode"]: run})
    check(folder / "compare.html", json.loads((folder / "compare.json").read_text())["runs"])
    page = folder / "run.html"
    text = page.read_text()
    light, dark = re.search(r":root \{(.*?)\}", text, re.S)[1], re.search(r"dark\) \{ :root \{(.*?)\}", text, re.S)[1]
    check_picture(page, light, [], "light")
    check_picture(page, dark, ["--blink-settings=preferredColorScheme=0"], "dark")
    # The negative controls: a request, with and without the page's own prohibition, and a number that is another.
    bad = folder / "bad.html"
    for body in [text, re.sub(r"<meta http-equiv[^>]*>", "", text)]:
        bad.write_text(body.replace("</body>", '<img src="http://127.0.0.1:9/x.png"></body>'))
        _, console, asked = browse(bad, "--dump-dom")
        assert console or asked, "a page that asks for a picture was not found out"
    bad.write_text(re.sub(r'(data-key="ttft_s.mean" data-value=")', r"\g<1>1", text))
    try:
        check(bad, {run["config"]["mode"]: run})
    except AssertionError:
        print("negative controls found out")
    else:
        sys.exit("a page with a wrong number was not found out")


main()
