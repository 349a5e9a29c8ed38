"""Quarry: a message broker that RocketMQ's clients use.

`protocol` lies in this folder. The other packages in it are links to folders at the top of the repository
(docs/adr/0056).
"""
