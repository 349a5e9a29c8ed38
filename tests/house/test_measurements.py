"""Pages name the measured figures of docs/measurements.toml, and no others where they speak for the project."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any, Final

import pytest

from tests.house.source import ROOT

MEASUREMENTS: Final[dict[str, Any]] = tomllib.loads((ROOT / "docs" / "measurements.toml").read_text())
WHOLE: Final = ("README.md", "docs/comparison.md", "docs/faq.md")
"""Pages that may name no other measured figure."""

MEASURED: Final = re.compile(
    r"\d[\d.,]*(?: (?:to|or|and) \d[\d.,]*)*"
    r" ?(?:times|µs|ms\b|MB\b|/s\b|sends? a second|(?:messages )?(?:per|a) second|s (?:longer|after)"
    r"|of the processor time)"
)
"""A number with a unit in which the project measures."""

NOT_MEASURED: Final = {
    "docs/faq.md": {"5,000 due per second"},
}
"""Loads and limits, which look alike."""


def values() -> dict[str, Any]:
    """Return what sentences have in braces."""
    found = dict(MEASUREMENTS["values"])
    kinds = ("sync_send", "sync_pipeline", "async_send", "async_pipeline")
    found["send_ratios"] = span(found["clients"][kind]["ratio"] for kind in kinds)
    found["python_send_ratios"] = span(found["python"][kind] for kind in kinds)
    return found


def span(numbers: Iterable[str]) -> str:
    ordered = sorted(numbers, key=float)
    return f"{ordered[0]} to {ordered[-1]}"


def text_of(page: str) -> str:
    """Return the text of a page on one line."""
    return re.sub(r"\s+", " ", (ROOT / page).read_text())


def sentences(page: str) -> list[str]:
    return [each.format(**values()) for each in MEASUREMENTS["pages"][page]]


@pytest.mark.parametrize("page", MEASUREMENTS["pages"])
def test_a_page_names_the_measurements_of_the_file(page: str) -> None:
    text = text_of(page)
    assert [each for each in sentences(page) if each not in text] == []


@pytest.mark.parametrize("page", WHOLE)
def test_a_page_names_no_other_measurements(page: str) -> None:
    text = text_of(page)
    for each in (*sentences(page), *NOT_MEASURED.get(page, ())):
        text = text.replace(each, "")
    assert MEASURED.findall(text) == []


def test_every_measurement_is_named_by_a_page() -> None:
    named = "".join(each for page in MEASUREMENTS["pages"].values() for each in page)
    unnamed = [
        f"{group}.{name}"
        for group, named_values in MEASUREMENTS["values"].items()
        for name in named_values
        if f"{{{group}[{name}]" not in named
    ]
    assert unnamed == []


def test_sums_and_ratios_agree() -> None:
    """A sum or ratio is never a measurement of its own."""
    memory = MEASUREMENTS["values"]["memory"]
    assert int(memory["own"]) + int(memory["libraries"]) == int(memory["resident"])
    for name, case in MEASUREMENTS["values"]["clients"].items():
        ours, theirs = (float(each) for each in case["cpu"].split(" / "))
        assert ours / theirs == pytest.approx(float(case["cpu_ratio"]), abs=0.03), name


def test_a_number_of_another_run_is_found() -> None:
    found = MEASURED.findall(
        "It is 1.5 to 2.1 times as fast, takes 121 MB, sends 12,000 a second within 7 ms of 24 hours."
    )
    assert found == ["1.5 to 2.1 times", "121 MB", "12,000 a second", "7 ms"]
