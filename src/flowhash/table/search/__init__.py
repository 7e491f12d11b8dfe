"""The search kernels: which buckets are opened, their scan, and the exact ranking."""
