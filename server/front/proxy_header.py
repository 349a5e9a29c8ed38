r"""The PROXY header, by which a load balancer says whose connection it forwards (HAProxy's protocol, versions 1 and 2).

The header comes before everything else, also before TLS. Only known load balancers are believed
(`FrontLimits.proxies`): whoever may send the header chooses the address that counts for limits, rules and logs.

- Version 1 is one line of at most 107 bytes: `PROXY TCP4 192.0.2.1 198.51.100.7 56324 8081\r\n`, the client's address
  first. `PROXY UNKNOWN` says nothing.
- Version 2 is binary: 12 bytes of signature; a byte with the version (2) and the command (0 LOCAL, 1 PROXY); a byte
  with the address family; the size of the rest in 2 bytes; the addresses; further fields, which are skipped.

Both can be told from TLS, HTTP/2 and remoting by their first bytes.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from quarry_mq.server.addresses import Address, Ends
from quarry_mq.server.front.hello import peeked, peeked_more

LINE_START: Final = b"PROXY "
LINE_END: Final = b"\r\n"
LINE_SIZE_MAX: Final = 107
LINE_FAMILIES: Final[Mapping[bytes, type[IPv4Address | IPv6Address]]] = {b"TCP4": IPv4Address, b"TCP6": IPv6Address}

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
HEAD_SIZE: Final = 16
LOCAL, PROXY = 0x20, 0x21
"""Versions and commands: the load balancer's own connection, such as a health check, and that of a client."""

FAMILIES: Final[Mapping[int, tuple[type[IPv4Address | IPv6Address], int]]] = {
    0x11: (IPv4Address, 4),
    0x21: (IPv6Address, 16),
}
"""TCP over IPv4 and over IPv6, with the size of an address in bytes. Other families say nothing of use."""

SIZE_MAX: Final = 4096
"""Bytes after the head of version 2. Load balancers send up to some hundreds: names, checksums, certificates' names."""

FIRST_BYTES: Final = frozenset({LINE_START[:1], SIGNATURE[:1]})


class ProxyHeaderMalformed(ValueError):
    """A connection begins with something that is nearly a PROXY header."""


async def take_proxy_header(connection: socket.socket) -> Ends | None:
    """Consume the PROXY header with which a connection begins, and return the ends of the forwarded connection.

    None if there is no header, or if it names no addresses. Raises ProxyHeaderMalformed, and EOFError or OSError if the
    connection ends.
    """
    if await peeked(connection, 1) not in FIRST_BYTES:
        return None
    said = await peeked(connection, len(SIGNATURE))
    if said.startswith(LINE_START):
        while LINE_END not in said:
            if len(said) >= LINE_SIZE_MAX:
                raise ProxyHeaderMalformed("the line does not end")
            said = await peeked_more(connection, len(said) + 1, LINE_SIZE_MAX)
        line, _, _ = said.partition(LINE_END)
        connection.recv(len(line) + len(LINE_END))
        return ends_of_line(line)
    if said == SIGNATURE:
        head = await peeked(connection, HEAD_SIZE)
        size = int.from_bytes(head[14:16])
        if size > SIZE_MAX:
            raise ProxyHeaderMalformed(f"it has {size} bytes")
        whole = await peeked(connection, HEAD_SIZE + size)
        connection.recv(len(whole))
        return ends_of_binary(whole)
    return None  # HTTP/2 begins with the same byte


def ends_of_line(line: bytes) -> Ends | None:
    """Return the ends that a header of version 1 names, without its line end. Raises ProxyHeaderMalformed."""
    words = line.split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return None
    if len(words) != 6 or words[1] not in LINE_FAMILIES:
        raise ProxyHeaderMalformed("its line is not PROXY, family, two addresses, two ports")
    family = LINE_FAMILIES[words[1]]
    _, _, client, here, client_port, here_port = (each.decode("ascii", "replace") for each in words)
    try:
        # Address.parse also takes no port that is not a number up to 65535
        peer, local = (
            Address.parse(f"[{family(ip)}]:{port}") for ip, port in ((client, client_port), (here, here_port))
        )
    except ValueError as error:
        raise ProxyHeaderMalformed(str(error)) from None
    return Ends(peer.host, str(peer), str(local))


def ends_of_binary(header: bytes) -> Ends | None:
    """Return the ends that a header of version 2 names. Raises ProxyHeaderMalformed."""
    command, family = header[12], header[13]
    if command not in {LOCAL, PROXY}:
        raise ProxyHeaderMalformed(f"version {command >> 4}, command {command & 15}")
    if command == LOCAL or family not in FAMILIES:
        return None
    make, size = FAMILIES[family]
    addresses, ports = header[HEAD_SIZE : HEAD_SIZE + 2 * size], header[HEAD_SIZE + 2 * size : HEAD_SIZE + 2 * size + 4]
    if len(ports) < 4:
        raise ProxyHeaderMalformed("it is too short for its addresses")
    peer = Address(str(make(addresses[:size])), int.from_bytes(ports[:2]))
    return Ends(peer.host, str(peer), str(Address(str(make(addresses[size:])), int.from_bytes(ports[2:]))))
