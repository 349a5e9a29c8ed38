"""The package copies a store to other machines: one primary, and replicas that follow it.

`wire` and `shipment` do no I/O. `primary` serves replicas from the broker's process, `replica` follows a primary until
it is promoted. `role` is what a replica knows about itself.
"""
