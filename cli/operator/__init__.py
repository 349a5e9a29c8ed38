"""`quarry operator` brings a broker to what custom resources of Kubernetes declare.

`loop` watches resources, and writes their status and events. A reconciler handles the resources of one kind: those in
`declarations` the things of a broker, `shards` the pods of a release, and `migrations` a move from RocketMQ.
"""
