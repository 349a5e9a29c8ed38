"""The documents say what is typed and what comes of it: that is done here, and compared (docs/documents.md)."""
