"""Members exchange replicated metadata, deletions included, and take in members that come back."""
