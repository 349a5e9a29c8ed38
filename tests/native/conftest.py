"""The native part, or the reason why it cannot be tested; and both readers of plain calls."""

from __future__ import annotations

import pytest

from quarry_mq.server.rpc.plain import PlainCalls, PythonCalls
from quarry_mq.store.native import NATIVE, WHY_NOT, Native


@pytest.fixture
def native() -> Native:
    if NATIVE is None:
        pytest.skip(f"no native part: {WHY_NOT}")
    return NATIVE


@pytest.fixture(params=["native", "python"])
def plain_calls(request: pytest.FixtureRequest) -> PlainCalls:
    if request.param == "python":
        return PythonCalls()
    found: Native = request.getfixturevalue("native")
    return found
