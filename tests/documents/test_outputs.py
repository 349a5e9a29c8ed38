"""The comparison itself: what it takes for the same and what not."""

from __future__ import annotations

import pytest

from tests.documents.invocations import Invocation, in_block, mistake
from tests.documents.outputs import Bindings, matches
from tests.documents.pages import ROOT, Block
from tests.documents.session import FOREGROUND

ONE, OTHER = "01A11970103F5052830B159C4E00000000", "01DF2F111963D95B0A0B159C6800000000"


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([], []),
        (["…"], []),
        (["…"], ["a", "b"]),
        (["a", "…", "z"], ["a", "z"]),
        (["a", "…", "z"], ["a", "z", "b", "z"]),
        (["name  …"], ["name     orders"]),
        (["   3  messages"], ["3 messages"]),
        (["at 2026-11-23T09:07:26.581Z"], ["at 2031-01-02T03:04:05Z"]),
        (["took 3.4 ms"], ["took 12 s"]),
        ([f"{ONE}  offset 1"], [f"{OTHER}  offset 1"]),
    ],
)
def test_the_same(expected: list[str], actual: list[str]) -> None:
    assert matches(expected, actual, Bindings())


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([], ["a"]),
        (["a"], []),
        (["a", "…", "z"], ["a", "b"]),
        (["3 messages"], ["4 messages"]),
        (["a.c"], ["abc"]),
        (["name …"], ["names"]),
        ([f"{ONE}  offset 1"], [f"{OTHER}  offset 2"]),
        ([ONE, ONE], [ONE, OTHER]),
        (["at 2026-11-23T09:07:26Z"], ["at noon"]),
    ],
)
def test_not_the_same(expected: list[str], actual: list[str]) -> None:
    assert not matches(expected, actual, Bindings())


def test_a_name_of_the_page_is_that_of_the_run_from_then_on() -> None:
    bindings = Bindings()
    assert matches([f"sent {ONE}"], [f"sent {OTHER}"], bindings)
    assert bindings.put_into(f"quarry message show --topic orders {ONE}").endswith(OTHER)


def understood(line: str, *, is_whole: bool = True) -> bool:
    return mistake(Invocation(line.split(), "here", is_whole=is_whole)) is None


def test_what_the_command_line_would_not_understand_is_a_mistake() -> None:
    assert understood("topic create orders --queues 4")
    assert understood("--context production topic list --json")
    assert understood("topic create", is_whole=False)
    assert understood("user add-secret|remove-secret NAME", is_whole=False)
    assert not understood("topic create")
    assert not understood("topic make orders")
    assert not understood("topic create orders --queue-count 4")
    assert not understood("topic create orders bills")
    assert not understood("migrate STORE --to")
    assert not understood("export-metadata STORE")


@pytest.mark.parametrize(
    "line", ["quarry serve", "A=1 B=2 quarry serve --store s", "make serve", "quarry --context x serve"]
)
def test_what_runs_until_it_is_told_to_stop(line: str) -> None:
    assert FOREGROUND.match(line)


@pytest.mark.parametrize("line", ["quarry serve --store s &", "quarry broker", "make serve-all &", "echo quarry serve"])
def test_what_comes_to_an_end_by_itself(line: str) -> None:
    assert not FOREGROUND.match(line)


def test_commands_are_found_wherever_they_stand() -> None:
    text = """$ QUARRY_CONTEXT=x quarry broker > broker.txt 2>&1; quarry topic list | grep -c "a b"
$ sudo -u quarry /opt/quarry/bin/quarry doctor --json   # not a command: quarry nothing
$ kubectl exec quarry-0 --namespace quarry -- quarry stats
$ docker run quarry:1 && secret=$(quarry security new-key f)
$ cat <<'END' | quarry lag billing
quarry in a text
END
shown: quarry is no command here
"""
    found = [list(each.words) for each in in_block(Block(ROOT / "README.md", 1, "console", text))]
    assert found == [
        ["broker"],
        ["topic", "list"],
        ["doctor", "--json"],
        ["stats"],
        ["security", "new-key", "f"],
        ["lag", "billing"],
    ]
