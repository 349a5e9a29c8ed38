"""The services of the admin port about the store: files, indexes, queue migration and verification."""
