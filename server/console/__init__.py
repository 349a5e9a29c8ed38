"""The console: pages for operators over HTTP. Each call goes on to the admin port, signed as who is logged in."""
