"""Settings of who may use the broker, and of the keys for users' secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, SecretStr, model_validator

from quarry_mq.server.settings.sections.base import Section


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # unknown, a folder of the database, a path that leads out of it
        raise ValueError(f"{name!r} is not a time zone such as Europe/Berlin") from None
    return name


ZoneName = Annotated[str, AfterValidator(_zone)]


class SecuritySection(Section):
    authentication: bool = Field(
        default=False,
        description="Whether messaging clients must authenticate as users, by a signature or a client certificate.",
    )
    authorization: bool = Field(
        default=False,
        description="Whether users may do only what their access rules allow. Needs `authentication` (rmq#8613, "
        "rmq#9958).",
    )
    admin_authentication: bool | None = Field(
        default=None, description="The same for callers of the admin port. Default: the value of `authentication`."
    )
    open_admin: bool = Field(
        default=False,
        description="Whether an admin port or console that other machines can reach may be used by anybody, and "
        "operators' requests by remoting likewise. If not, an address of these ports other than loopback needs users "
        "(`authentication`) or `network.admin_client_ca`, and without users operators' requests by remoting are "
        "refused to other machines.",
    )
    admin_callers: Literal["anywhere", "this-machine"] = Field(
        default="anywhere",
        description="From where operators may call the admin port. With `this-machine` only loopback addresses and the "
        "port's own address are served, so that `network.admin` may be an address that other machines reach, and no "
        "users are needed. Members of a cluster call from other machines all the same: each proves that it has the "
        "cluster's key.",
    )
    date_window_s: int = Field(
        default=300,
        ge=0,
        description="How far the signed date of a call may differ from the broker's clock. 0: no limit, so that a "
        "signature is valid forever; the admin port then uses 300.",
    )
    client_zones: list[ZoneName] = Field(
        default=[],
        description="Time zones (`Europe/Berlin`) of clients that sign their local time, in addition to UTC and the "
        "broker's own zone. The clients for Java, Python, Go and C# sign local time.",
    )
    failures_per_minute: int = Field(
        default=30,
        gt=0,
        description="Failed authentications of one user from one address per minute; all users of an address together "
        "may have ten times as many. Above the limit, wrong signatures are answered with TOO_MANY_REQUESTS; correct "
        "ones always pass.",
    )
    key_file: Path | None = Field(
        default=None,
        description="A file with the keys that encrypt the users' secrets, one per line: the first one encrypts, all "
        "of them decrypt. Only the file's owner may have access to it. Made by `quarry security new-key`.",
    )
    key: SecretStr | None = Field(
        default=None,
        description="The keys themselves, separated by commas, instead of `key_file`. Meant for environment variables.",
    )

    @property
    def asks_operators(self) -> bool:
        """Return whether callers of the admin port have to be users."""
        return self.authentication if self.admin_authentication is None else self.admin_authentication

    @model_validator(mode="after")
    def _authorization_knows_users(self) -> Self:
        if self.authorization and not self.authentication:
            raise ValueError("authorization needs authentication: access rules apply to users only")
        return self

    @model_validator(mode="after")
    def _keys_lie_in_one_place(self) -> Self:
        if self.key_file is not None and self.key is not None:
            raise ValueError("key_file and key are both set")
        return self
