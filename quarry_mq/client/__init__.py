"""The public Python API: clients of a broker's messaging port and of its admin port (docs/python-client.md).

`messaging` sends, receives and acknowledges, and `aio` does so for asyncio. `queues` reads queues by their offsets, and
`admin` makes the calls of operators. The package imports `protocol` alone.
"""
