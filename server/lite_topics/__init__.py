"""The life of lite topics beside their delivery: how many there may be, and when they go."""
