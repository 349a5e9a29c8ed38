"""The services of the admin port about topics, groups, lite topics, users, clients and settings."""
