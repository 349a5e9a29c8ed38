"""Who makes the call that is being served: for what depends on more than the request says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final

from server.errors import PermissionDenied
from server.security.authorization import Need
from server.security.terms import Access

Require = Callable[[Sequence[Need]], None]
"""Raises PermissionDenied, which names what is missing."""


def _nothing(_needs: Sequence[Need]) -> None:
    """Nobody is asked who he is, or may do everything."""


_REQUIRE: Final[ContextVar[Require]] = ContextVar("require", default=_nothing)
"""Of a call, each of which is a task of its own."""


def caller_is(require: Require) -> None:
    """To be called once it is known who calls."""
    _REQUIRE.set(require)


def is_anybody_asked() -> bool:
    """Whether there are callers that may not do everything."""
    return _REQUIRE.get() is not _nothing


def caller_must(accesses: Sequence[Access]) -> None:
    """For calls that go on for long: rights may be taken away meanwhile. Raises PermissionDenied."""
    _REQUIRE.get()([(each,) for each in accesses])


def caller_may(accesses: Sequence[Access]) -> bool:
    """Whether the caller is allowed all of this. False for nothing: that is for super users alone."""
    try:
        _REQUIRE.get()([(each,) for each in accesses] or [()])
    except PermissionDenied:
        return False
    return True
