"""Vectors without labels: what a recall takes, beside k-means."""
