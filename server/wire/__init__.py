"""Conversion between protobuf and the broker's own types: messages, settings, status (docs/formats/protocol.md)."""
