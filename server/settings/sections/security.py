"""Settings of who may use the broker, and of the keys for users' secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, SecretStr, model_validator

from quarry_mq.server.settings.sections.base import Section


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # unknown, a folder of the database, a path that leads out of it
        raise ValueError(f"{name!r} is no time zone such as Europe/Berlin") from None
    return name


ZoneName = Annotated[str, AfterValidator(_zone)]


class SecuritySection(Section):
    authentication: bool = Field(
        default=False,
        description="Whether messaging clients have to be users: by a signature, or by a client certificate.",
    )
    authorization: bool = Field(
        default=False,
        description="Whether users may do only what their rules allow. Needs `authentication` (rmq#8613, rmq#9958).",
    )
    admin_authentication: bool | None = Field(
        default=None, description="The same for callers of the admin port. Without it as `authentication` says."
    )
    open_admin: bool = Field(
        default=False,
        description="Whether callers of the admin port and the console may be anybody where other machines reach them. "
        "Without it an address that is not loopback needs users (`authentication`) or `network.admin_client_ca`.",
    )
    date_window_s: int = Field(
        default=300,
        ge=0,
        description="How far the date that a client signed may be off the broker's clock. 0: as far as it likes, so "
        "that a signature is good for ever; on the admin port 300 then.",
    )
    client_zones: list[ZoneName] = Field(
        default=[],
        description="Time zones of clients (`Europe/Berlin`) that sign their local time, beside UTC and the broker's "
        "own. Java, Python, Go and C# do.",
    )
    failures_per_minute: int = Field(
        default=30,
        gt=0,
        description="How often one user may fail to prove itself from one address; ten times that for all users from "
        "there. Above it wrong signatures are answered TOO_MANY_REQUESTS; right ones always pass.",
    )
    key_file: Path | None = Field(
        default=None,
        description="The keys that secrets of users are sealed with, one in a line: the first one seals, all of them "
        "open. Only its owner may read it. Made by `quarry security new-key`.",
    )
    key: SecretStr | None = Field(
        default=None,
        description="The same keys themselves, separated by commas, in place of `key_file`: for the environment.",
    )

    @property
    def asks_operators(self) -> bool:
        """Return whether callers of the admin port have to be users."""
        return self.authentication if self.admin_authentication is None else self.admin_authentication

    @model_validator(mode="after")
    def _authorization_knows_users(self) -> Self:
        if self.authorization and not self.authentication:
            raise ValueError("authorization needs authentication: nobody can be told what a stranger may do")
        return self

    @model_validator(mode="after")
    def _keys_lie_in_one_place(self) -> Self:
        if self.key_file is not None and self.key is not None:
            raise ValueError("key_file and key are both set")
        return self
