"""The calls of the messaging service as plain functions on a front: check, call, translate."""
