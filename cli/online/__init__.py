"""Commands for a live broker: administration through its admin port, messages through its messaging port."""
