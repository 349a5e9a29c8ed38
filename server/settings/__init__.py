"""The settings of a broker: their sections, how they are loaded, and which change while the broker runs."""
