"""Messages on the wire and in records: names of their properties, flags, bodies."""
