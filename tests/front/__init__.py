"""The h2 front: its pure parts, its engine under a model and under attack, and real sockets."""
