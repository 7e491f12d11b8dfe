"""One stage while it trains: the loop, its checkpoints, log, folder, processes and validation."""
