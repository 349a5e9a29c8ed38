"""Opening a store: lock, recovery, repairs that an operator ordered, then its parts put together.

This package imports nearly all others of the store; `store.tools` alone imports it.
"""
