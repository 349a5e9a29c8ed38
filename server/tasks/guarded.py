"""Run callbacks that must not stop each other."""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


def run_guarded(callback: Callable[..., None], *arguments: object) -> None:
    """Run a callback so that its failure stops no other callback."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("callback failed", callback=repr(callback))
