"""The package opens a store: it takes the lock, repairs what an operator ordered, recovers, and assembles the parts.

It imports nearly all other packages of the store; of these, only `store.tools` imports it.
"""
