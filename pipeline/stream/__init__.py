"""Connects Spark to live brokers: topics become streams, and rows become messages.

`reader` is the source, `writer` the sink. Both are imported on first use: tables of stores need no gRPC.
"""
