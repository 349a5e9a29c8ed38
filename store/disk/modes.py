"""Who may use what is made: the broker's own user. What is there already keeps its mode."""

from __future__ import annotations

import os
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
OTHERS: Final = 0o077


def keep_from_others() -> None:
    """Whatever this process makes from now on is for its own user: databases, the audit, what libraries make."""
    os.umask(os.umask(OTHERS) | OTHERS)
