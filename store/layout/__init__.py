"""The package describes a store directory: its file names, what kind of store it is, and where its
consume queues are.
"""
