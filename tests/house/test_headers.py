"""A front that keeps only the headers that are asked for has all of those."""

from __future__ import annotations

import ast

from quarry_mq.protocol.signature import AUTHORIZATION, DATE
from quarry_mq.server.front.contract import LOGGED_HEADERS
from quarry_mq.server.observability.tracing import TRACEPARENT
from quarry_mq.server.rpc.context import HEADERS
from tests.house.source import name, production_files

ASKED = {
    "server/front/contract.py: header": frozenset(LOGGED_HEADERS.values()),
    "server/rpc/context.py: CLIENT_ID": frozenset({"x-mq-client-id"}),
    "server/rpc/messaging.py: TRACEPARENT": frozenset({TRACEPARENT}),
    "server/rpc/messaging.py: name": frozenset[str](),
    "server/rpc/receives.py: LANGUAGE": frozenset({"x-mq-language"}),
    "server/security/authentication.py: AUTHORIZATION": frozenset({AUTHORIZATION}),
    "server/security/authentication.py: DATE": frozenset({DATE}),
}
"""The expressions by which the server asks a call for a header, and the names that they stand for."""


def test_all_headers_that_are_asked_for_are_kept() -> None:
    found = {
        f"{name(path)}: {ast.unparse(node.args[0])}"
        for path in production_files()
        if name(path).startswith("server/") and not name(path).startswith("server/front/h2/")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "header"
    }
    assert found == set(ASKED)
    assert frozenset().union(*ASKED.values()) == HEADERS


def test_nobody_asks_for_all_headers() -> None:
    """`Call.metadata` is for tests and for calls that wrap another one."""
    askers = {
        name(path)
        for path in production_files()
        if name(path).startswith(("server/rpc/", "server/admin_port/")) and "call.metadata()" in path.read_text()
    }
    assert askers == {"server/rpc/messaging.py"}
