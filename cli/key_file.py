"""Creates files that hold one key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from quarry_mq.store.security.sealer import new_key

KEY_FILE_MODE: Final = 0o600


def make_key_file(file: Path) -> None:
    """Make the file with a new key, 32 random bytes in URL-safe base64, for its owner only.

    Raises FileExistsError, OSError.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_FILE_MODE)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(new_key() + b"\n")
        opened.flush()
        os.fsync(descriptor)
