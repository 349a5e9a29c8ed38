"""Calls about clients themselves: telemetry streams, heartbeats, commands to clients, and revoked rights."""
