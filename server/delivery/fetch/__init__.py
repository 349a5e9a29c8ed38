"""The messages for one receive or pull are read here: which ones, in which order, and how many."""
