"""Define the settings of a broker, load them, and change some while the broker runs."""
