"""Process 1 of the cluster's namespaces: all other processes of the cluster end with it.

    python init.py [keep]

Without `keep` it ends when its standard input ends, so nothing is left of a run that was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def end_with_the_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    if "keep" not in sys.argv[1:]:
        threading.Thread(target=end_with_the_input, daemon=True).start()
    print("ready", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigtimedwait({signal.SIGCHLD}, 10)


if __name__ == "__main__":
    main()
