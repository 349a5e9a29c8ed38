"""Members exchange replicated metadata, deletions included, and accept members that come back."""
