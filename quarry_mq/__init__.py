"""Quarry: a message broker that RocketMQ's clients use.

`client`, the public API, and `protocol` lie in this folder. The other packages in it are links to folders at the top of
the repository (docs/adr/0056).
"""
