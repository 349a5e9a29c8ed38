"""SendMessage has two paths: one for any send, and one that takes plain sends together."""
