"""`pass_socket.py DESCRIPTOR COMMAND...`: become the command, with the socket passed as systemd does it."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    if descriptor == 3:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(descriptor, 3)
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    os.execv(command[0], command)
