"""Quarry: a message broker that RocketMQ's clients use.

The packages in here are links to folders at the top of the repository (docs/adr/0056).
"""
