"""Conversion between protobuf and the broker's own types: limits, codes, messages, settings (docs/formats/protocol.md).

With `server.rpc` and the CLI's online client this is the only importer of `server._generated`.
"""
