"""`quarry doctor` checks a broker, its store and its machine, and advises on what it finds.

Each module checks one subject and yields `Finding`s; nothing is changed.
"""
