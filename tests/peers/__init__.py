"""Reimplementations of published descriptions of gMLP, to compare this package with."""
