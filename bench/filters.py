"""Measures how fast a filter decides.

SQL expressions over the properties of messages, as a subscription with few matches evaluates them. The peer is the same
condition written by hand in Python, with the same rules for missing values: the best that a compiler could reach. Tag
filters are shown beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate, measure
from quarry_mq.server.filters import MessageFilter, SqlFilter, TagFilter

QUESTION: Final = "How fast does a filter over properties decide?"
Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sizes:
    messages: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(messages=200_000, rounds=7),
    Scale.QUICK: Sizes(messages=50_000, rounds=3),
    Scale.TINY: Sizes(messages=1_000, rounds=1),
}


def _number(properties: Properties, name: str) -> int | None:
    text = properties.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _range_by_hand(properties: Properties) -> bool:
    amount = _number(properties, "amount")
    return amount is not None and 990 <= amount <= 999


def _several_by_hand(properties: Properties) -> bool:
    amount = _number(properties, "amount")
    return (
        amount is not None
        and amount > 500
        and properties.get("region") in ("eu", "us")
        and properties.get("vip") == "TRUE"
        and "note" not in properties
    )


CASES: Final[dict[str, tuple[MessageFilter, Callable[[Properties], bool]]]] = {
    "one number": (SqlFilter.parse("amount BETWEEN 990 AND 999"), _range_by_hand),
    "four conditions": (
        SqlFilter.parse("amount > 500 AND region IN ('eu', 'us') AND vip = 'TRUE' AND note IS NULL"),
        _several_by_hand,
    ),
    "a tag of three": (
        TagFilter.parse("paid || sent || done"),
        lambda properties: properties.get("TAGS") in ("paid", "sent", "done"),
    ),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    messages = _messages(Random(options.seed), sizes.messages)
    return [_case(name, *each, messages, sizes.rounds) for name, each in CASES.items()]


def _case(
    name: str,
    wanted: MessageFilter,
    by_hand: Callable[[Properties], bool],
    messages: list[Properties],
    rounds: int,
) -> Case:
    matching = _matching(wanted.matches, messages)
    if matching != _matching(by_hand, messages):
        raise RuntimeError(f"{name}: the filter and the condition by hand disagree")
    ours, theirs = alternate(rounds, lambda: _sample(wanted.matches, messages), lambda: _sample(by_hand, messages))
    return Case(
        name=name,
        unit="messages",
        peer="the condition by hand",
        ours=ours,
        theirs=theirs,
        details={"matching": round(len(matching) / len(messages), 4)},
    )


def _sample(matches: Callable[[Properties], bool], messages: list[Properties]) -> Sample:
    def work() -> int:
        for properties in messages:
            matches(properties)
        return len(messages)

    return measure(work)


def _matching(matches: Callable[[Properties], bool], messages: list[Properties]) -> list[int]:
    return [at for at, properties in enumerate(messages) if matches(properties)]


def _messages(random: Random, count: int) -> list[Properties]:
    """Make messages: a third has no amount, a tenth has an amount that is no number."""
    messages: list[Properties] = []
    for number in range(count):
        properties = {
            "UNIQ_KEY": f"01{random.getrandbits(128):032X}",
            "TAGS": random.choice(("created", "paid", "sent", "cancelled")),
            "region": random.choice(("eu", "us", "asia")),
            "vip": random.choice(("TRUE", "FALSE")),
        }
        if number % 3:
            properties["amount"] = "much" if number % 10 == 0 else str(random.randrange(1000))
        if number % 4 == 0:
            properties["note"] = "n"
        messages.append(properties)
    return messages
