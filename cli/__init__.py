"""The `quarry` command."""
