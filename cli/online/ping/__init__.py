"""`quarry ping`: how long a broker takes to answer."""
