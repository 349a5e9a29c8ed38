"""Fixtures of the tests of copies."""

from tests.e2e.conftest import start_clients

__all__ = ["start_clients"]
