"""Stores what remoting clients send.

Public face of the package: other packages import from here.
"""

from quarry_mq.server.remoting.sends.fast import FastRemotingSends
from quarry_mq.server.remoting.sends.ordinary import REGION, RemotingSends, SendHeader, send_header

__all__ = ["REGION", "FastRemotingSends", "RemotingSends", "SendHeader", "send_header"]
