"""Readers of files and Hub datasets: one for each kind of input, for training scripts and tools alike."""
