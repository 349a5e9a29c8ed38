"""Every call of the admin port has its contract, a line in docs/admin-calls.md, and a command in quick-reference.md."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest

from quarry_mq.protocol.admin_methods import methods, short_name
from quarry_mq.server.admin_port.calls.access import ALL, CLUSTER, JOB_SERVICE, SUPER_SERVICES, admin_needs
from quarry_mq.server.security.credentials import Access
from tests.admin_calls.rows import Elsewhere, Never, SuperUsers
from tests.admin_calls.table import NOT_FOR_OPERATORS, TABLE
from tests.commands import commands
from tests.house.source import PACKAGE, ROOT, imports, tree

DOCS: Final = ROOT / "docs" / "admin-calls.md"
GRPCURL: Final = ROOT / "docs" / "grpcurl.md"
QUICK_REFERENCE: Final = ROOT / "docs" / "quick-reference.md"
ANY_CALL: Final = "quarry call"
"""The command `call` makes every call; ours have commands of their own."""

OF_HISTORY: Final = "`get` on the cluster; of a topic or group, `get` on it"
BY_REQUEST: Final = {
    "OverviewService/GetHistory": OF_HISTORY,
    "AllMembersService/GetHistory": OF_HISTORY,
    "AllMembersService/AskMembers": "what the call needs that the members make",
}
"""These requests name one thing or another, and the call needs a right to what its request names."""

BY_JOB: Final = {
    "BeginJob": "what the work of the job needs",
    "GetJob": "the same, or `get` on the cluster",
    "ListJobs": "nothing: who calls sees the jobs that it may see",
    "CancelJob": "the same, or `update` on the cluster",
}


def test_every_call_has_a_row_with_all_cases() -> None:
    assert set(TABLE) == set(methods())
    for path, row in TABLE.items():
        for case in (row.missing, row.malformed):
            assert case.reason if isinstance(case, Never) else case, path
        if path.partition("/")[0] in SUPER_SERVICES:
            assert isinstance(row.needs, SuperUsers), path
        else:
            assert not isinstance(row.needs, SuperUsers), path
            assert row.needs, path


def test_what_is_tested_elsewhere_is_tested_there() -> None:
    said = [row.holds.test for row in TABLE.values() if isinstance(row.holds, Elsewhere)]
    for test in said:
        path, _, name = test.partition("::")
        assert name in {getattr(each, "name", "") for each in tree(ROOT / path).body}, test
    for reason in NOT_FOR_OPERATORS.values():
        (path,) = re.findall(r"\((tests/\S+)\)", reason)
        assert (ROOT / path).exists(), path


MADE_BY_PROGRAMS: Final = {"QueryService/QueryIds": "quarry_mq/client/admin.py"}
"""Calls of ours for programs, and the client that makes them. Operators have other calls for the same question."""


def documented() -> Iterator[tuple[str, str, list[str]]]:
    """Each call with what it needs and the commands that make it."""
    for section in re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1:]:
        service = re.match(r"`(\S+)`\n", section)
        if service is None:
            continue
        for call, needs, made_by in re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \|$", section, flags=re.MULTILINE):
            if call != "call":
                yield f"{service[1]}/{call}", needs, re.findall(r"`(quarry [^`]+)`", made_by)


def needed(path: str) -> str:
    """In the words of the page, of a request that names all that it may."""
    service = path.partition("/")[0]
    if service in SUPER_SERVICES:
        return "to be a super user"
    if service == JOB_SERVICE:
        return BY_JOB[path.partition("/")[2]]
    if (short := short_name(f"/{path}")) in BY_REQUEST:
        return BY_REQUEST[short]
    return " and ".join(_text(access) for (access,) in admin_needs(f"/{path}", _Anything(), "any"))


def _text(access: Access) -> str:
    if access.kind is CLUSTER:
        where = "the cluster"
    else:
        where = f"`{access.kind.value}:*`" if access.name == ALL else f"the {access.kind.value}"
    return f"`{access.action.value}` on {where}"


class _Anything:
    """A request with every field that there is."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def HasField(self, _name: str) -> bool:
        return True


def test_the_page_has_every_call_and_what_it_needs() -> None:
    assert {path: needs for path, needs, _ in documented()} == {path: needed(path) for path in methods()}


@pytest.mark.parametrize(("path", "made_by"), [(path, made_by) for path, _, made_by in documented()])
def test_the_commands_of_the_page_make_the_call(path: str, made_by: list[str]) -> None:
    service, _, method = path.partition("/")
    known = known_commands()
    if short_name(f"/{path}") in MADE_BY_PROGRAMS:
        assert short_name(f"/{path}") in (ROOT / MADE_BY_PROGRAMS[short_name(f"/{path}")]).read_text()
        assert made_by == [ANY_CALL]
        return
    assert made_by, "some command has to make it"
    assert set(made_by) <= set(known)
    if made_by == [ANY_CALL]:
        assert not service.startswith("quarry."), "a call of ours has a command of its own"
        return
    for each in made_by:
        assert re.search(rf"\b{method}\b", sources_of(known[each])), f"{each} does not make it"


@cache
def known_commands() -> dict[str, Any]:
    return dict(commands())


def sources_of(command: Any) -> str:
    """The command's module with those of its package that it imports."""
    module = sys.modules[inspect.unwrap(command.callback).__module__]
    path = ROOT / (module.__name__.replace(".", "/") + ".py")
    near = {
        f"{PACKAGE}.{each.module}" for each in imports(path) if each.module.startswith(("cli.local.", "cli.online."))
    }
    return "\n".join(inspect.getsource(sys.modules[name]) for name in {module.__name__, *near} if name in sys.modules)


def test_the_session_with_grpcurl_lists_the_services_that_there_are() -> None:
    """tests/e2e/test_grpcurl.py plays all of it where Go is."""
    listed = re.search(r"^\$ grpcurl \S+ \S+ list\n((?:[\w.]+\n)+)", GRPCURL.read_text(), flags=re.MULTILINE)
    assert listed is not None
    operators = {path.partition("/")[0] for path in methods()}
    assert listed[1].split() == sorted({*operators, *NOT_FOR_OPERATORS} - {"quarry.cluster.v1.ClusterService"})


def test_the_quick_reference_shows_each_command_that_makes_a_call() -> None:
    """On a line of its family, `quarry topic …`: as it is typed, or by its last word."""
    page = QUICK_REFERENCE.read_text()
    shown = [line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ ")]
    for command in {each for _, _, made_by in documented() for each in made_by}:
        _, family, *rest = command.split()
        lines = [line for line in shown if re.match(rf"quarry {family}\b", line)]
        word = rest[0] if rest else family
        assert any(re.search(rf"(?<![\w-]){word}(?![\w-])", line) for line in lines), f"{command} is not shown"
