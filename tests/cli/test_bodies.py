"""Bodies of messages as commands show them."""

from __future__ import annotations

import gzip
import zlib

import pytest

from quarry_mq.cli.online.messages.found_messages import body_fields
from quarry_mq.protocol.messages import bodies as compressed_bodies
from quarry_mq.protocol.messages.bodies import body_text, uncompressed


def test_gzip_and_zlib_are_told_apart() -> None:
    assert uncompressed(gzip.compress(b"body")) == uncompressed(zlib.compress(b"body")) == b"body"


@pytest.mark.parametrize("body", [b"", b"body", zlib.compress(b"body")[:-1], gzip.compress(b"body", mtime=0) + b"more"])
def test_what_is_not_whole_is_not_uncompressed(body: bytes) -> None:
    assert uncompressed(body) is None


def test_a_body_that_grows_without_end_is_not_uncompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_bodies, "PLAIN_SIZE_MAX", 1_000)
    assert uncompressed(zlib.compress(bytes(1_000))) == bytes(1_000)
    assert uncompressed(zlib.compress(bytes(1_001))) is None


def test_text_is_what_does_nothing_to_a_terminal() -> None:
    assert body_text("zwölf\n\tTöne\u3000音".encode()) == "zwölf\n\tTöne\u3000音"
    for body in (b"\xff", b"\x1b[2J", b"\x00", "\x9b2J".encode()):
        assert body_text(body) is None
    assert body_fields(b"a") == {"body": "a"}
    assert body_fields(b"\x00") == {"bodyBase64": "AA=="}
