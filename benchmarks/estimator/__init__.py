"""FlowHasher: how long it fits, and what its buckets find."""
