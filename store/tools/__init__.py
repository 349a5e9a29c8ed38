"""Commands for a stopped store that need `store.opening`: moving and repairing queues, and making users."""
