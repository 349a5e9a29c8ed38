"""Tests of the public clients against a broker."""
