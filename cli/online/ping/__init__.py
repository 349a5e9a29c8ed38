"""`quarry ping` measures how long a broker takes to answer."""
