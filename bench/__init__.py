"""Benchmarks: one module per question, one JSON line each. How to run and read them: docs/benchmarks.md.

A benchmark module has a `QUESTION` and a `run(options)` that returns its `Case`s or raises `CannotRun`.
"""
