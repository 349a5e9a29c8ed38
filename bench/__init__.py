"""The benchmarks: each module answers one question and gives one JSON line.

How to run and read them: docs/benchmarks.md.

A benchmark module has a `QUESTION` and a `run(options)` that returns its `Case`s or raises `CannotRun`.
"""
