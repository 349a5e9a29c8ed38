"""Asks the pods of brokers what they are: the primary of a shard, or a copy."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from quarry_mq.cli.operator.kubernetes import Pod
from quarry_mq.cli.operator.shards import Answer, Wanted

PORT: Final = 9464
"""The HTTP port of the chart's pods."""
TIMEOUT_S: Final = 2.0


class Pods:
    """The HTTP ports of pods."""

    def __init__(self, authority: Path | None) -> None:
        """`authority` is the file (PEM) by which certificates are verified; None for those of the machine."""
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
        # a connection that is kept would tell of a pod that is cut off only when its time is over
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(verify=context, timeout=TIMEOUT_S, limits=limits, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def ask(self, pod: Pod, wanted: Wanted) -> Answer | None:
        """Return what a pod says about its role, or None if it does not answer."""
        if not pod.address:
            return None
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        # certificates are valid for the names of pods
        extensions = {"sni_hostname": f"{pod.name}.{wanted.domain}"} if wanted.domain else {}
        url = f"{'https' if wanted.has_tls else 'http'}://{host}:{PORT}/replica"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._client.get(url, extensions=extensions)
            document = found.json()
        except (httpx.HTTPError, TimeoutError, ValueError):
            return None
        return Answer(found.is_success, document) if isinstance(document, dict) else None
