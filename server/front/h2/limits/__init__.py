"""Limits of the h2 front: on memory, on useless requests, and on the share of one peer address."""
