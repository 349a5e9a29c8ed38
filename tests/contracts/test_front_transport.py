"""Fronts listen with TLS, with and without client certificates, on unix sockets, and on several addresses at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from quarry_mq.server.front import Call, FrontKind, LiveTls, Method, TlsFiles, make_front
from tests.certificates import Tls, make_tls
from tests.contracts.front_client import BIDI, UNARY, echo, open_channel, run, soon, status_of


def certificate_of(call: Call, body: bytes) -> None:
    call.reply(call.peer_certificate or b"none")


def answer(call: Call, body: bytes) -> None:
    call.send(body)


async def ask(address: str, tls: Tls | None = None) -> bytes:
    async with open_channel(address, tls) as channel:
        answer: bytes = await soon(channel.unary_unary(UNARY)(b"body"))
        return answer


def test_one_front_listens_plain_and_with_tls(kind: FrontKind, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        front = make_front(kind, {UNARY: Method(echo)})
        plain, secure = await front.start("127.0.0.1:0"), await front.start("127.0.0.1:0", tls.live())
        assert plain != secure
        assert await ask(plain) == await ask(secure, tls) == b"body"
        async with open_channel(secure) as channel:
            assert (await status_of(channel.unary_unary(UNARY)(b"")))[0] is grpc.StatusCode.UNAVAILABLE
        await front.stop(0)

    run(test())


def test_handlers_see_the_certificate_of_the_client(kind: FrontKind, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path, clients_too=True)
        assert tls.client is not None
        front = make_front(kind, {UNARY: Method(certificate_of)})
        address = await front.start("127.0.0.1:0", tls.live())
        assert await ask(address, tls) == ssl.PEM_cert_to_DER_cert(tls.client[0].decode())
        async with open_channel(address, replace(tls, client=None)) as stranger:
            assert (await status_of(stranger.unary_unary(UNARY)(b"")))[0] is grpc.StatusCode.UNAVAILABLE
        await front.stop(0)

    run(test())


def test_without_client_certificates_there_is_none_to_see(kind: FrontKind, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        front = make_front(kind, {UNARY: Method(certificate_of)})
        plain, secure = await front.start("127.0.0.1:0"), await front.start("127.0.0.1:0", tls.live())
        assert await ask(plain) == await ask(secure, tls) == b"none"
        await front.stop(0)

    run(test())


def test_a_new_certificate_is_for_new_connections_and_open_ones_live_on(kind: FrontKind, tmp_path: Path) -> None:
    async def test() -> None:
        old = make_tls(tmp_path, clients_too=True)
        front = make_front(kind, {UNARY: Method(echo), BIDI: Method(answer, streaming_in=True, streaming_out=True)})
        live = old.live()
        address = await front.start("127.0.0.1:0", live)
        async with open_channel(address, old) as channel:
            stream = channel.stream_stream(BIDI)()
            await stream.write(b"before")
            assert await soon(stream.read()) == b"before"
            new = make_tls(tmp_path, clients_too=True)
            live.show(live.read())
            assert await ask(address, new) == b"body"
            await stream.write(b"after")
            assert await soon(stream.read()) == b"after", "the open call goes on"
            assert await soon(channel.unary_unary(UNARY)(b"again")) == b"again", "so does the connection"
        for stranger in (old, replace(new, client=old.client)):
            async with open_channel(address, stranger) as channel:
                assert (await status_of(channel.unary_unary(UNARY)(b"")))[0] is grpc.StatusCode.UNAVAILABLE
        assert await ask(address, new) == b"body"
        await front.stop(0)

    run(test())


def test_handlers_see_whether_the_client_came_over_tls(kind: FrontKind, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        front = make_front(kind, {UNARY: Method(lambda call, _: call.reply(str(call.is_secure).encode()))})
        plain, secure = await front.start("127.0.0.1:0"), await front.start("127.0.0.1:0", tls.live())
        assert (await ask(plain), await ask(secure, tls)) == (b"False", b"True")
        await front.stop(0)

    run(test())


def test_a_tls_client_that_does_not_offer_h2_is_not_served(kind: FrontKind, tmp_path: Path) -> None:
    """A client without ALPN is refused, since nobody knows that it speaks HTTP/2 (RFC 9113 §3.2)."""

    async def test() -> None:
        tls = make_tls(tmp_path)
        front = make_front(kind, {UNARY: Method(echo)})
        host, _, port = (await front.start("127.0.0.1:0", tls.live())).rpartition(":")
        context = ssl.create_default_context(cadata=tls.authority.decode())
        try:
            reader, writer = await soon(asyncio.open_connection(host, int(port), ssl=context))
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            try:
                assert await soon(reader.read()) == b""
            finally:
                writer.close()
        except (ssl.SSLError, ConnectionError):
            pass  # refused within the handshake: as good
        assert await ask(f"{host}:{port}", tls) == b"body"
        await front.stop(0)

    run(test())


def test_a_tls_file_that_is_no_good_is_named(tmp_path: Path) -> None:
    tls = make_tls(tmp_path).files
    junk, missing = tmp_path / "junk.pem", tmp_path / "missing.pem"
    junk.write_text("nothing")
    for files, named in (
        (TlsFiles(missing, tls.key), missing),
        (TlsFiles(junk, tls.key), junk),
        (TlsFiles(tls.certificate, junk), junk),
        (TlsFiles(tls.certificate, tls.key, junk), junk),
    ):
        with pytest.raises(ValueError, match=str(named)):
            LiveTls(files)


def test_a_unix_socket_is_an_address_too(kind: FrontKind, tmp_path: Path) -> None:
    async def test() -> None:
        def peer(call: Call, body: bytes) -> None:
            call.reply(call.peer.encode())

        front = make_front(kind, {UNARY: Method(peer)})
        address = f"unix:{tmp_path}/front"
        assert await front.start(address) == address
        assert await ask(address) == b"unix"
        await front.stop(0)

    run(test())


def test_an_ipv6_client_is_told_by_its_address_in_brackets(kind: FrontKind) -> None:
    async def test() -> None:
        def peer(call: Call, body: bytes) -> None:
            call.reply(call.peer.encode())

        if not socket.has_ipv6:
            pytest.skip("no IPv6 here")
        front = make_front(kind, {UNARY: Method(peer)})
        try:
            address = await front.start("[::1]:0")
        except OSError:
            pytest.skip("no IPv6 here")
        assert (await ask(address)).startswith(b"[::1]:")
        await front.stop(0)

    run(test())
