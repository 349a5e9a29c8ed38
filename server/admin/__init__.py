"""What operators do with a running broker and read of it: plain calls, which `server/admin_port` serves."""
