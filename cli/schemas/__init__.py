"""Describes what `--json` prints, by command: a schema for programs, and one page of documentation."""
