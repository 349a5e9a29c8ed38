"""The fixtures of the end-to-end tests serve here too."""

from __future__ import annotations

from tests.e2e.conftest import start_broker, start_clients

__all__ = ["start_broker", "start_clients"]
