"""The compressor of ZSTD, wherever this Python has it."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdCompressor, compress
else:
    from backports.zstd import CompressionParameter, ZstdCompressor, compress

__all__ = ["CompressionParameter", "ZstdCompressor", "compress"]
