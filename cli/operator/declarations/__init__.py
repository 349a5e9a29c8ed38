"""Brings topics, groups, users and access rules to what resources declare.

Their reconcilers share the rules of `declared`: adoption, drift and deletion.
"""
