"""Export the metrics of a broker as Prometheus instruments, by subject."""
