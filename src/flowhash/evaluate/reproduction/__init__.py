"""The paper's experiments: what is trained, and what is searched with it."""
