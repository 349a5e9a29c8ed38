"""What is asked of users and rules (`store/security`). Both count how often they were changed."""

from __future__ import annotations

from typing import Protocol

from store.security.model import Policy, User


class Users(Protocol):
    @property
    def generation(self) -> int:
        """Grows with each change."""

    def get(self, name: str) -> User | None: ...

    def by_certificate(self, subject: str) -> User | None: ...


class Policies(Protocol):
    @property
    def generation(self) -> int:
        """Grows with each change."""

    def get(self, user: str) -> Policy: ...
