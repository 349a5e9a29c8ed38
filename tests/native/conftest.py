"""The native part, or the reason why it cannot be tested."""

from __future__ import annotations

import pytest

from quarry_mq.store.native import NATIVE, WHY_NOT, Native


@pytest.fixture
def native() -> Native:
    if NATIVE is None:
        pytest.skip(f"no native part: {WHY_NOT}")
    return NATIVE
