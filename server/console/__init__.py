"""The console serves pages for operators over HTTP. Calls go on to the admin port, signed as the logged-in user."""
