"""Run work beside serving: time slices on the event loop, background tasks, and threads that block."""
