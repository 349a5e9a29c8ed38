"""The broker as a process: stop, health, the HTTP port, certificates, descriptors and garbage collection."""
