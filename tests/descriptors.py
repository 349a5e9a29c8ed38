"""Counting a process's file descriptors, and a process that has none left."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec

from quarry_mq.kv import descriptor_limit

_Arguments = ParamSpec("_Arguments")


def in_own_process(test: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Run this test of a module in a new process, where no thread or garbage of another test closes a file."""

    @wraps(test)
    def run(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(_run, test.__module__, test.__name__, *arguments, **named).result()

    return run


def _run(module: str, name: str, *arguments: object, **named: object) -> None:
    getattr(import_module(module), name).__wrapped__(*arguments, **named)


def descriptors_below(folder: Path) -> int:
    """Count the open descriptors of files in this folder.

    A count of all descriptors also falls whenever garbage of an earlier test is collected.
    """
    return sum(_path(entry).startswith(f"{folder}/") for entry in os.listdir("/proc/self/fd"))


def _path(entry: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{entry}")
    except FileNotFoundError:  # closed since it was listed
        return ""


@contextmanager
def starved() -> Iterator[None]:
    """Nothing can be opened in this process meanwhile. Its test runs `in_own_process`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with suppress(OSError):
            while len(taken) < descriptor_limit():
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)
