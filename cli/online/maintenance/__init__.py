"""Commands about the store of a live broker and its long work: jobs, migration, verification and backups."""
