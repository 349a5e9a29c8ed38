"""Export when the certificate ends, and how often changed files could not be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class CertificateFigures(Protocol):
    """The numbers that a broker's certificates keep."""

    @property
    def expires_s(self) -> float | None: ...

    @property
    def failed_reloads(self) -> int: ...


def certificate_figures(certificates: CertificateFigures) -> Iterator[Metric]:
    """Yield the metrics; the end of the certificate only if a port speaks TLS."""
    if certificates.expires_s is not None:
        yield GaugeMetricFamily(
            "quarry_tls_certificate_expires_seconds",
            "When the certificate in use expires, in seconds since 1970",
            value=certificates.expires_s,
        )
    yield CounterMetricFamily(
        "quarry_tls_failed_reloads",
        "Changes of the TLS files that could not be used, so that the old files stayed in use",
        value=certificates.failed_reloads,
    )
