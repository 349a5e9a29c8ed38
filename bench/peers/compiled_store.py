"""`bench.peers.queue_store` of compiled modules where they are installed, as `quarry serve` takes them."""

from __future__ import annotations

from importlib import import_module

from cli.compiled import use_compiled

if __name__ == "__main__":
    use_compiled(None)
    import_module("bench.peers.queue_store").main()
