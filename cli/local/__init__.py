"""Commands that use a store or a part of the broker on this machine, and call a live broker, too."""
