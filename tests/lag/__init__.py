"""How far groups are behind, against a count that asks none of the code that tells it."""
