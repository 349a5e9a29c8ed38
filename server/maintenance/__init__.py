"""Background work on a running store: retention, clean-up, migration, checkpoints, indexes and verification.

`server/upkeep.py` puts the parts together and runs them.
"""
