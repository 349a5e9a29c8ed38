"""The kinds of jobs: each module does the work of one kind, and `server/jobs` runs it."""
