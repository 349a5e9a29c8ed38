"""Fixtures of the tests with a live master: brokers and clients in processes of their own."""

from tests.e2e.conftest import start_broker, start_clients

__all__ = ["start_broker", "start_clients"]
