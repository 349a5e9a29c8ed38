"""The operations of operators on a running broker: plain calls, which `server/admin_port` serves."""
