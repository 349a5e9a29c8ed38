"""The services of the admin port about messages: browsing, queries, dead letters, and jobs."""
