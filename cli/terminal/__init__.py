"""The terminal side of commands: text, tables, times, progress, errors with hints, and exit status."""
