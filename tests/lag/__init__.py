"""The lag of groups, against a count that uses none of the broker's code for it."""
