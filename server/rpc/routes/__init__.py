"""Calls that ask for routes and assignments: which queues a topic has, and where they are."""
