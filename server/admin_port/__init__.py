"""The admin port serves operators, RocketMQ's dashboards and other members of a cluster over gRPC.

Errors are answered with gRPC status codes.
"""
