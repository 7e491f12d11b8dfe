"""Segments: rows that never change, as arrays that kernels see."""
