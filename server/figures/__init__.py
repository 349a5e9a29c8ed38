"""What an operator looks at first: the broker now, the last hour, and topics and groups with what they do of late.

Nothing here knows a wire. `server.rpc.admin_port.overview` tells it.
"""
