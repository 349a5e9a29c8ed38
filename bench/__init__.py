"""Benchmarks: one file per question, one JSON line each."""
