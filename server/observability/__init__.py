"""What a broker shows of itself to monitoring: metrics, traces and logs."""
