"""What reflection tells of: protobuf's pool of descriptors, in which methods are found as well."""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default, DescriptorPool


def reflected_pool() -> DescriptorPool:
    """The default pool knows services by name and no methods, which grpcurl asks for: `describe Service.Method`."""
    return cast("DescriptorPool", _WithMethods(Default()))


class _WithMethods:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """Raises KeyError."""
        file: FileDescriptor
        try:
            file = self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            file = self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file
        return file
