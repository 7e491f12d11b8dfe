"""Buckets of vectors that nobody labelled: neighbours, the router, second buckets."""
