"""Rules for the files of the console's pages: sizes, forbidden parts, calls that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quarry_mq import server
from quarry_mq.cli.terminal.text import harmless
from quarry_mq.protocol.admin_methods import methods

STATIC: Final = Path(server.__file__).parent / "console" / "static"
SIZE_MAX: Final = 340_000
MODULE_LINES_MAX: Final = 400
CONTRAST_MIN: Final = 4.5

NOT_IN_MODULES: Final = {
    r"\b(inner|outer)HTML\b|insertAdjacentHTML|document\.write|createContextualFragment": "text of strangers as markup",
    r"\beval\(|new Function\b|setTimeout\(\s*[\"'`]": "text as code, which the policy refuses",
    r"\.style\b|[\"']style[\"']|\bcssText\b": "style attributes, which the policy refuses",
    r"\b(textContent|document\.title)\s*=(?!\s*(harmless\(|\"|(this\.)?isPaused \? \"))": "text as it came",
    r"\b(localStorage|sessionStorage|document\.cookie)\b": "nothing but the theme is kept in the browser",
}
KEEPS: Final = "theme.js"
"""The one module that keeps something in the browser: whether pages are light or dark."""

node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")


def modules() -> list[Path]:
    return sorted(STATIC.glob("*.js"))


@pytest.fixture
def as_modules(tmp_path: Path) -> Path:
    """A copy that Node.js takes for modules."""
    folder = tmp_path / "static"
    shutil.copytree(STATIC, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def test_all_of_it_is_light() -> None:
    sizes = {path.name: path.stat().st_size for path in STATIC.iterdir()}

    assert sum(sizes.values()) < SIZE_MAX, sizes


def test_modules_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in modules()}

    assert {name: count for name, count in lines.items() if count >= MODULE_LINES_MAX} == {}


@node
def test_each_module_parses_and_finds_what_it_imports(as_modules: Path) -> None:
    """All but the shell are imported for it, which needs a page."""
    (as_modules / "all.js").write_text(
        "".join(f'import "./{path.name}";\n' for path in modules() if path.stem != "app")
    )

    for command in (["node", str(as_modules / "all.js")], ["node", "--check", str(as_modules / "app.js")]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def run_in_node(folder: Path, text: str) -> str:
    (folder / "run.js").write_text(text)
    done = subprocess.run(
        ["node", str(folder / "run.js")], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@node
def test_pages_show_as_escapes_what_commands_show_so(as_modules: Path) -> None:
    """Pages escape every character that commands escape; Windows line ends count as line ends."""
    told = run_in_node(
        as_modules,
        """import { harmless } from "./dom.js";
        const units = (text) => [...Array(text.length).keys()].map((at) => text.charCodeAt(at));
        const steering = [];
        for (let one = 0; one < 0x110000; one++) {
          const text = String.fromCodePoint(one);
          const shown = harmless(`a${text}b`);
          if (shown !== `a${text}b`) steering.push([one, shown]);
        }
        console.log(JSON.stringify([steering, harmless("a\\r\\nb\\rc")]));""",
    )

    steering, lines = json.loads(told)
    characters = (chr(each) for each in range(0x110000))
    assert steering == [[ord(each), f"a{shown}b"] for each in characters if (shown := harmless(each)) != each]
    assert lines == "a\r\nb\\u000dc"


@node
def test_what_people_read_is_shown_so_and_what_they_type_stays(as_modules: Path) -> None:
    told = run_in_node(
        as_modules,
        """globalThis.Node = class {};
        globalThis.document = { createElement: (tag) => Object.assign(new Node(), {
          localName: tag, children: [], attributes: {}, value: null,
          append(child) { this.children.push(child); },
          setAttribute(name, value) { this.attributes[name] = value; },
        }) };
        const { h } = await import("./dom.js");
        const name = "a\\u202eb\\u2028c";
        const properties = { title: name, "aria-label": name, href: name, value: name };
        const shown = h("a", properties, name, [name, h("b", null, name)]);
        console.log(JSON.stringify([shown, h("textarea", null, name)]));""",
    )

    shown, typed = json.loads(told)
    raw, safe = "a\u202eb\u2028c", r"a\u202eb\u2028c"
    assert shown["attributes"] == {"title": safe, "aria-label": safe, "href": raw}
    assert shown["value"] == raw
    assert shown["children"][:2] == [safe, safe]
    assert shown["children"][2]["children"] == [safe]
    assert typed["children"] == [raw]


def test_modules_have_nothing_that_turns_text_into_markup_or_code() -> None:
    found = [
        f"{path.name}: {match[0]} ({why})"
        for path in modules()
        for pattern, why in NOT_IN_MODULES.items()
        for match in re.finditer(pattern, path.read_text())
        if not (path.name == KEEPS and match[0] == "localStorage")
    ]

    assert found == []


def test_the_page_has_no_script_handler_or_style_of_its_own() -> None:
    page = (STATIC / "index.html").read_text()

    assert re.findall(r"\son\w+\s*=", page) == []
    assert re.findall(r"\sstyle\s*=|<style", page) == []
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.search(r'<html lang="en">', page)


def test_nothing_is_fetched_from_elsewhere() -> None:
    """The one address that is left names SVG."""
    found = {
        (path.name, address)
        for path in STATIC.iterdir()
        for address in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*|@import|url\([^)]*\)", path.read_text())
    }

    assert found == {("dom.js", "http://www.w3.org/2000/svg"), ("icon.svg", "http://www.w3.org/2000/svg")}


def test_each_call_is_one_of_the_admin_port() -> None:
    known = {f"{method.containing_service.name}/{method.name}" for method in methods().values()}
    called = {
        (path.name, name)
        for path in modules()
        for name in re.findall(r"[\"'](\w+/[A-Z]\w+)[\"']", path.read_text())
        if not name.endswith("/Method")
    }

    assert {(path, name) for path, name in called if name not in known} == set()
    assert {"OverviewService/ListOverviews", "BrowsingService/TailMessages"} <= {name for _, name in called}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name, for each name that a module imports."""
    for names, module in re.findall(r'import \{([^}]*)\} from "\./([\w.]+)"', path.read_text()):
        for name in names.split(","):
            yield module, name.strip()


def test_each_name_that_is_imported_is_exported_and_used() -> None:
    exported = {
        path.name: set(re.findall(r"export (?:async )?(?:function\*?|class|const|let) (\w+)", path.read_text()))
        for path in modules()
    }
    wrong = [
        f"{path.name}: {name} of {module}"
        for path in modules()
        for module, name in imports(path)
        if name not in exported.get(module, set()) or len(re.findall(rf"\b{name}\b", path.read_text())) < 2
    ]

    assert wrong == []


def test_each_page_in_the_list_has_a_module_of_its_own() -> None:
    shell = (STATIC / "pages.js").read_text()
    listed = set(re.findall(r'^  \["[\w-]*", (?:"[^"]+"|null), "(\w+)", (?:"\w+"|null)\]', shell, re.MULTILINE))
    details = set(re.findall(r'(?:[\w-]+|"[\w-]+"): "(\w+)"', shell.split("DETAILS", 1)[1].split("\n", 1)[0]))
    there = {path.stem.removeprefix("page_") for path in STATIC.glob("page_*.js")}

    assert len(listed) > 15
    assert listed | details | {"login"} == there


def luminance(colour: str) -> float:
    """Of "#rrggbb", as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


PAIRS: Final = [
    *((text, back) for text in ("text", "soft", "link") for back in ("back", "panel", "row")),
    *((kind, back) for kind in ("good", "warn", "bad", "info") for back in (f"{kind}-back", "panel", "row")),
    *((f"s{number}", "panel") for number in range(6)),
    ("press-text", "press"),
    ("danger", "panel"),
    ("focus", "back"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_after_it(scheme: str) -> None:
    """In light and in dark at least 4.5 to 1."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", (STATIC / "style.css").read_text())
    colours = {name: (light, dark)[("light", "dark").index(scheme)] for name, light, dark in pairs}

    weak = {pair: round(contrast(*(colours[name] for name in pair)), 2) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < CONTRAST_MIN} == {}


MERGED: Final = """
import { Merged, sumOf } from "./members.js";
const pages = { a: [[9, 8], [4, 1]], b: [[7], [6, 5]], c: [[], [3, 2]] };
let asked = 0;
const taken = (member, page) => ({
  member,
  rows: pages[member][page].map((at) => ({ at, member })),
  next: page + 1 < pages[member].length ? page + 1 : null,
});
const ask = async (member, cursor) => {
  asked += 1;
  return taken(member, cursor);
};
const merged = new Merged(Object.keys(pages).map((member) => taken(member, 0)), ask, (one, other) => one.at > other.at);
const shown = [];
while (!merged.isOver) shown.push((await merged.page(4)).map((row) => `${row.member}${row.at}`).join(" "));
const barren = new Merged([{ member: "a", rows: [{ at: 1 }], next: null }, { member: "b", rows: [], next: 0 }],
  async () => ({ rows: [], next: 1 }), (one, other) => one.at > other.at);
const parts = [{ answers: [{ n: "2" }] }, { answers: [] }, { answers: [{ n: 3 }] }];
console.log(JSON.stringify({
  shown,
  asked,
  barren: [await barren.page(3), barren.isOver],
  sums: [sumOf(parts, (one) => one.n), sumOf([{ answers: [{}] }, ...parts], (one) => one.n) ?? null],
}));
"""


@node
def test_rows_of_members_are_merged_in_their_order(as_modules: Path) -> None:
    """No row is shown before one that another member has still to find."""
    assert json.loads(run_in_node(as_modules, MERGED)) == {
        "shown": ["a9 a8 b7 b6", "b5 a4 c3 c2", "a1"],
        "asked": 3,
        "barren": [[], False],
        "sums": [5, None],
    }


STATS: Final = """
import { bytesText, countText, durationText, isKnown, localInputMs, localInputOf, rateText, timeText } from "./format.js";
import { address } from "./links.js";
import { quantile } from "./stages.js";
import { remainingMs } from "./work.js";
import { hexLines } from "./body_view.js";
import { changedPairs } from "./topic_form.js";
import { valueText } from "./chart.js";
import { csv, flat } from "./export.js";
const at = 1795424564000;
console.log(JSON.stringify({
  durations: [0, 0.016, 66, 1000, 7380000, 90061000, -5000].map(durationText),
  bytes: [0, 1023, 1024, 1536, "1073741824", "9223372036854775807"].map(bytesText),
  counts: ["0", 9999, 12345, "1823948"].map(countText),
  rates: [0, 0.25, 9.96, 118.3].map(rateText),
  known: [undefined, null, "", "NaN", NaN, 0, "0"].map(isKnown),
  odd: [timeText("9223372036854775807"), timeText(-9e15), localInputOf("1700000000000000000")],
  input: localInputMs(localInputOf(at)) === at && localInputMs("") === null,
  address: address(["topics", "a/b %"], { x: "1 2", empty: "" }),
  quantiles: [quantile([1, 2], [0, 0, 0], 0.5), quantile([1, 2], [9, 1, 0], 0.5), quantile([1, 2], [0, 0, 1], 0.5)].map(String),
  remaining: [remainingMs({ at: Date.now() - 1000, done: 0 }, 0, 100), remainingMs({ at: Date.now() - 1000, done: 0 }, 50, undefined),
    Math.round(remainingMs({ at: Date.now() - 1000, done: 0 }, 50, 100) / 100)],
  hex: hexLines(new Uint8Array([72, 105, 0, 255])),
  pairs: changedPairs({ a: "1", b: "3" }, { a: "1", b: "2", c: "4" }),
  flat: flat({ a: { b: "1" }, c: ["x", "y"], d: [{ e: 1 }] }),
  csv: csv([{ a: '=1+1', b: 'x,"y"' }, { a: "-5", c: null }]),
  chart: [valueText(NaN, "bytes"), valueText(0.0004, "seconds"), valueText(26, "ms"), valueText(0.59, "messages/s"), valueText(0, "messages")],
}));
"""  # noqa: E501


@node
def test_stats_are_told_for_people(as_modules: Path) -> None:
    (as_modules / "figures.js").write_text(STATS)
    done = subprocess.run(["node", as_modules / "figures.js"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

    assert json.loads(done.stdout) == {
        "durations": ["0 ms", "16 µs", "66 ms", "1 s", "2 h 3 min", "1 d 1 h", "-5 s"],
        "bytes": ["0 B", "1,023 B", "1.00 KiB", "1.50 KiB", "1.00 GiB", "8192 PiB"],
        "counts": ["0", "9,999", "12.3 k", "1.82 M"],
        "rates": ["0/s", "0.3/s", "10.0/s", "118/s"],
        "known": [False, False, False, False, False, True, True],
        "odd": ["9223372036854775807 ms", "-9000000000000000 ms", ""],
        "input": True,
        "address": "#/topics/a%2Fb%20%25?x=1%202",
        "quantiles": ["null", "1", "Infinity"],
        "remaining": [None, None, 10],
        "hex": "00000000  48 69 00 ff                                      Hi..",
        "pairs": {"b": "3", "c": ""},
        "flat": {"a.b": "1", "c": "x; y", "d": '[{"e":1}]'},
        "csv": 'a,b,c\r\n\'=1+1,"x,""y""",\r\n-5,,',
        "chart": ["unknown", "400 µs", "26 ms", "0.59/s", "0"],
    }
