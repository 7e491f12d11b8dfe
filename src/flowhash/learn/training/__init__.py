"""One stage while it trains: the loop, its checkpoints, log, processes and validation."""
