"""What the documents say is typed and comes out is typed here and compared: docs/documents.md tells how to write for it."""
