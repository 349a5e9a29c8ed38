"""Live brokers on Spark: their topics as streams, and rows as messages for them.

`reader` is the source, `writer` the sink. Imported when a broker is asked for: tables of stores need no gRPC.
"""
