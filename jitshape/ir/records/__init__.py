"""Graphs, sizes and plain values as records that another process can read."""
