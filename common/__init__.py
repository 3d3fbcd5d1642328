"""What benchmarks, examples and paper share."""
