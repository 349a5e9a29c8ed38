"""The bits of the system flag."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.messages.system_flag import (
    Compression,
    TransactionState,
    compression,
    transaction_state,
)


@pytest.mark.parametrize(
    ("system_flag", "expected"),
    [
        (0x000, None),
        (0x300, None),
        (0x001, Compression.ZLIB),
        (0x101, Compression.LZ4),
        (0x201, Compression.ZSTD),
        (0x301, Compression.ZLIB),
    ],
)
def test_compression(system_flag: int, expected: Compression | None) -> None:
    """Old clients set no method: theirs was ZLIB."""
    assert compression(system_flag) is expected


def test_compression_that_nobody_defined() -> None:
    with pytest.raises(ValueError, match="1024"):
        compression(0x401)


@pytest.mark.parametrize(
    ("system_flag", "state"),
    [
        (0x33, TransactionState.NONE),
        (0x04, TransactionState.PREPARED),
        (0x18, TransactionState.COMMIT),
        (0x0D, TransactionState.ROLLBACK),
    ],
)
def test_transaction_state(system_flag: int, state: TransactionState) -> None:
    assert transaction_state(system_flag) is state
