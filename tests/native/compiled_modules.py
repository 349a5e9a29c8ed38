"""A plugin of pytest: the tests meet compiled modules, as `quarry serve` does (`pytest -p` this, before all others)."""

from __future__ import annotations

from cli.compiled import use_compiled

WHY_NOT = use_compiled(None)
assert WHY_NOT is None, WHY_NOT
