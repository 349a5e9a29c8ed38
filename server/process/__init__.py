"""Manage the broker's process: stop, health, the HTTP port, certificates, descriptors and garbage collection."""
