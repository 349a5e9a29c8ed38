"""Between protobuf and the broker's own types: limits, codes, messages, settings (docs/formats/protocol.md).

With `server.rpc` and the CLI's online client the only importer of `server._generated`.
"""
