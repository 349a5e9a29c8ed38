"""No block of code in any document is left unchecked: it is run, or parsed; and a table says why it is not run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import promql_parser
import pytest
import yaml

from quarry_mq.cli.operator.resources import GROUP
from quarry_mq.server.filters import SqlFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from tests.documents import settings
from tests.documents.invocations import in_block, in_prose, mistake
from tests.documents.pages import PAGES, ROOT, Block, blocks
from tests.documents.table import FREE_LANGUAGES, NOT_RUN, PLAYED, SLOW
from tests.operator.definitions import faults

PROGRAMS = {"go", "java", "javascript", "rust"}
"""Languages of programs with official clients."""

LANGUAGES = {"console", "toml", "yaml", "json", "python", "sql", "promql", "proto", "xml", *PROGRAMS, *FREE_LANGUAGES}
CHART = ROOT / "deploy" / "helm" / "quarry"
READ_HERE = {"toml", "yaml", "promql", "sql"}
"""Languages whose blocks the tests below take for what they are, unless their page uses them."""
TYPED = re.compile(r"^(\$ |quarry |make |docker |kubectl |helm |pip |curl |openssl |sudo |systemctl )")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def each_block(language: str | None = None) -> Iterator[Block]:
    for page in PAGES:
        for block in blocks(page):
            if language in (None, block.language):
                yield block


def test_every_block_says_what_it_is() -> None:
    assert [(block.place, block.language) for block in each_block() if block.language not in LANGUAGES] == []


def test_what_can_be_typed_is_in_console_blocks() -> None:
    """Text is for pictures and bytes."""
    found = [
        f"{block.place}: {line}"
        for block in each_block()
        if block.language in FREE_LANGUAGES
        for line in block.text.splitlines()
        if TYPED.match(line)
    ]
    assert found == []


def test_what_is_not_run_is_in_the_table_with_its_reason() -> None:
    found = Counter((name(block.page), block.orders["not run"]) for block in each_block() if "not run" in block.orders)
    assert found == Counter({(page, reason): count for page, reason, count in NOT_RUN})


def test_what_is_tested_elsewhere_is_tested_there() -> None:
    found = [block for block in each_block() if "elsewhere" in block.orders]
    assert found
    for block in found:
        test = ROOT / block.orders["elsewhere"]
        assert test.is_file(), block.place
        assert block.page.name in test.read_text(), f"{block.place}: {test} does not know the page"


def test_every_page_with_commands_is_played() -> None:
    wanted = {block.page for block in each_block("console") if block.is_run}
    assert set(PLAYED) == wanted
    assert {name(page) for page in wanted} >= SLOW


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_quarry_command_is_understood(page: Path) -> None:
    found = [each for block in blocks(page) if block.language == "console" for each in in_block(block)]
    found += in_prose(page, ROOT)
    assert [(each.place, wrong) for each in found if (wrong := mistake(each)) is not None] == []


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    texts = [block.text for block in each_block("console")]
    texts += [f"$ {each}" for page in PAGES for each in re.findall(r"`(make [a-z-]+)", page.read_text())]
    found = {target for text in texts for target in re.findall(r"^\$ make ([a-z-]+)", text, flags=re.MULTILINE)}
    assert "serve" in found
    assert found - targets == set()


def test_every_block_of_data_or_code_is_used() -> None:
    """Blocks of data or code are used: each is written to a file of its page, played by a test, or read here."""
    left = [
        block.place
        for block in each_block()
        if block.language not in {"console", *FREE_LANGUAGES, *READ_HERE}
        and not {"file", "elsewhere", "not run"} & block.orders.keys()
    ]
    assert left == []


def test_settings_are_good() -> None:
    """Each alone makes a broker's settings."""
    for block in each_block("toml"):
        if not {"file", "elsewhere"} & block.orders.keys():
            assert settings.mistake(block.text) is None, block.place


def test_settings_in_the_text_exist() -> None:
    """`section.key` between backquotes, where there is such a section."""
    sections = "|".join(settings.SECTIONS)
    found = [
        (name(page), setting)
        for page in PAGES
        if page.name != "kubernetes.md"  # values of the chart are called alike
        for setting in re.findall(rf"`((?:{sections})\.[a-z_]+)[ =`]", page.read_text())
    ]
    assert len(found) > 100
    assert [each for each in found if not settings.exists(each[1]) and not is_module(each[1])] == []


def is_module(dotted: str) -> bool:
    """`store.record` is no setting."""
    path = ROOT / dotted.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file() or dotted.endswith((".py", ".md", ".x", ".json", ".key"))


def test_yaml_is_what_the_chart_kubernetes_or_prometheus_takes() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jobs = []
    for block in each_block("yaml"):
        values, *more = yaml.safe_load_all(block.text)
        if values.get("apiVersion", "").startswith(f"{GROUP}/"):
            assert [fault for each in (values, *more) for fault in faults(each)] == [], block.place
        elif "scrape_configs" in values:
            jobs += values["scrape_configs"]
        else:
            whole = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
            assert list(jsonschema.Draft7Validator(schema).iter_errors(whole)) == [], block.place
            assert settings.mistake_in(values.get("settings", {})) is None, block.place
    assert [job["job_name"] for job in jobs] == ["quarry", "quarry"]  # as the alert rules expect
    for job in jobs:
        assert set(job) == {"job_name", "scheme", "tls_config", "authorization", "static_configs"}
        (port,) = {target.rpartition(":")[2] for each in job["static_configs"] for target in each["targets"]}
        assert BrokerSettings().network.http.endswith(f":{port}")


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge values over those of the chart, as Helm does."""
    return below | {
        name: merged(below[name], value) if isinstance(value, dict) and name in below else value
        for name, value in above.items()
    }


def test_json_parses() -> None:
    for block in each_block("json"):
        assert all(json.loads(text) for text in block.text.splitlines()), block.place


def test_python_compiles() -> None:
    for block in each_block("python"):
        compile(block.text, block.place, "exec")


def test_expressions_of_prometheus_parse() -> None:
    for block in each_block("promql"):
        for text in re.split(r"\n\n+", block.text.strip()):
            promql_parser.parse(text)


def test_filters_parse() -> None:
    for block in each_block("sql"):
        if block.page.name == "filters.md":
            for line in block.text.splitlines():
                SqlFilter.parse(line)
        else:
            assert {"not run", "elsewhere"} & block.orders.keys(), block.place


def test_the_readme_is_short() -> None:
    """A newcomer finds the first hour and a map there; everything else has a page of its own."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_page_can_be_found() -> None:
    """A page that no other one leads to is read by nobody."""
    texts = {page: page.read_text() for page in PAGES}
    for page in PAGES:
        if page.parent == ROOT or "adr" in page.parts:
            continue
        assert any(page.name in text for other, text in texts.items() if other != page), (
            f"nothing leads to {name(page)}"
        )
