"""What one counts, prints and draws of a model: parameters and FLOPs, tables, filters."""
