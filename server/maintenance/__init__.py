"""Background work on a running store: retention, clean-up, migration, checkpoints, indexes and verification."""
