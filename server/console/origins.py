"""Which requests are the console's own pages': against forged requests, and against names that change their address."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""Of the header: a name or an address, and perhaps a port."""

FETCH_SITES: Final = ("same-origin", "none")
"""Of `Sec-Fetch-Site`: our page, and what the user typed."""


def host_of(header: str) -> str | None:
    """The host in a Host header, in small letters; None for what is no such header."""
    found = HOST.fullmatch(header)
    return None if found is None else found[1].lower()


def port_of(header: str) -> str:
    """The port in a Host header; the empty text where it names none."""
    found = HOST.fullmatch(header)
    return "" if found is None else found[2] or ""


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether no stranger's page can be behind it: an address, `localhost`, or one of these names.

    A stranger's name can be made to lead to any address after its page was loaded (DNS rebinding), and the browser
    takes what answers there for the same origin.
    """
    host = host_of(header)
    if host is None:
        return False
    if host == "localhost" or host in names:
        return True
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_own_origin(origin: str, host: str) -> bool:
    """Whether the `Origin` of a request is what its `Host` names. The scheme may be another one behind a proxy."""
    return origin.lower() in {f"http://{host}".lower(), f"https://{host}".lower()}
