"""`quarry doctor`: what is wrong with a broker, its store and its machine, and what to do about it.

Each module looks at one thing and says what it has seen as `Finding`s; nothing is changed.
"""
