"""`quarry operator` brings a broker to what custom resources of Kubernetes declare.

`loop` watches resources, and writes their status and events. A reconciler handles the resources of one kind. Those of
`topics`, `groups`, `users` and `rules` share the rules of `declared`: adoption, drift and deletion.
"""
