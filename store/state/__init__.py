"""The database `<store>/quarry/`: column families, identity of the store, jobs, and keys of messages in flight."""
