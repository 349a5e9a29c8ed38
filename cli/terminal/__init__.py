"""How commands talk to a terminal: text, tables, times, progress, errors with hints, and exit status."""
