"""Quarry: a message broker that RocketMQ's clients use.

The packages in this folder are links to folders at the top of the repository (docs/adr/0056).
"""
