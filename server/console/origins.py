"""Check that requests come from the console's own pages, against forged requests and DNS rebinding."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""Pattern of a Host header: a name or an address, and perhaps a port."""

FETCH_SITES: Final = ("same-origin", "none")
"""Accepted values of `Sec-Fetch-Site`: a request of our page, and an address that the user typed."""


def host_of(header: str) -> str | None:
    """Return the host in a Host header, in lower case; None if the header is malformed."""
    found = HOST.fullmatch(header)
    return None if found is None else found[1].lower()


def port_of(header: str) -> str:
    """Return the port in a Host header; empty if it names none."""
    found = HOST.fullmatch(header)
    return "" if found is None else found[2] or ""


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Return whether the host is an address, `localhost` or one of these names: no other site's page can have asked.

    A foreign name can be pointed at any address after its page was loaded (DNS rebinding), and the browser takes the
    server there for the same origin.
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
    """Return whether the `Origin` of a request is what its `Host` names. Behind a proxy the scheme may differ."""
    return origin.lower() in {f"http://{host}".lower(), f"https://{host}".lower()}
