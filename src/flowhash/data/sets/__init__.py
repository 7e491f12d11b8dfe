"""The data sets that are known by name or by their layout on disk."""
