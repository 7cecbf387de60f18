"""What the benchmarks of the server share."""
