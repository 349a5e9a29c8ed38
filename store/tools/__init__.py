"""The package has commands for a stopped store that need `store.opening`: moving and repairing queues, making users."""
