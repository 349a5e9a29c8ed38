"""The package holds what brokers and their clients share: the wire's types, names, limits and signatures.

It imports no other package of ours.
"""
