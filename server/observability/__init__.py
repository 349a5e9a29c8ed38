"""Show a broker to monitoring by metrics, traces and logs."""
