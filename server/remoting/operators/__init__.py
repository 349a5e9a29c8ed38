"""Requests of operators: settings, progress, statistics, users. RocketMQ's tools send them."""
