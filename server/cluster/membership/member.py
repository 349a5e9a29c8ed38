"""Describe one member of a cluster as all members know it: a replicated row (docs/formats/shared-rows.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from quarry_mq.server.addresses import Address
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata.row_json import Document, encode_document

TEXT_MAX: Final = 300
"""Largest number of characters of an address or a version."""


class MemberState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    """A draining member takes no new messages; consumers read it to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A member of the cluster. Addresses are `host:port`.

    `address` is None where clients without TLS are not let in, `tls_address` where clients with TLS are not.
    """

    name: str
    address: str | None
    tls_address: str | None
    admin_address: str
    state: MemberState = MemberState.ACTIVE
    version: str = ""

    def advertised_to(self, *, is_secure: bool) -> Address | None:
        """Return the address for clients with or without TLS; None when they cannot reach the member."""
        text = self.tls_address if is_secure else self.address
        return None if text is None else Address.parse(text)

    def in_state(self, state: MemberState) -> Member:
        return replace(self, state=state)

    def encode(self) -> bytes:
        return encode_document(
            {
                "address": self.address or "",
                "tls_address": self.tls_address or "",
                "admin_address": self.admin_address,
                "state": self.state.value,
                "version": self.version,
            }
        )

    @classmethod
    def decode(cls, name: str, value: bytes) -> Member:
        """Decode a row. Raises StoreDamaged, or Invalid for text that is no address."""
        row = Document("members", name, value)
        texts = {key: row.text(key) for key in ("address", "tls_address", "admin_address", "version")}
        too_long = [key for key, text in texts.items() if len(text) > TEXT_MAX]
        if too_long:
            raise Invalid(f"member {name}: {too_long[0]} has more than {TEXT_MAX} characters")
        for key in ("address", "tls_address", "admin_address"):
            if texts[key] or key == "admin_address":
                try:
                    Address.parse(texts[key])
                except ValueError as cause:
                    raise Invalid(f"member {name}: {key}: {cause}") from None
        state = row.text("state")
        return cls(
            name=name,
            address=texts["address"] or None,
            tls_address=texts["tls_address"] or None,
            admin_address=texts["admin_address"],
            # a state that only a newer version knows counts as draining: nothing new is sent there, and nothing is lost
            state=MemberState(state) if state in set(MemberState) else MemberState.DRAINING,
            version=texts["version"],
        )
