"""Who may use the broker, and by which secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from server.setting_sections.base import Section


class SecuritySection(Section):
    key_file: Path | None = Field(
        default=None,
        description="The keys that secrets of users are sealed with, one in a line: the first one seals, all of them "
        "open. Only its owner may read it. Made by `quarry security new-key`.",
    )
    key: SecretStr | None = Field(
        default=None,
        description="The same keys themselves, separated by commas, in place of `key_file`: for the environment.",
    )

    @model_validator(mode="after")
    def _keys_lie_in_one_place(self) -> Self:
        if self.key_file is not None and self.key is not None:
            raise ValueError("key_file and key are both set")
        return self
