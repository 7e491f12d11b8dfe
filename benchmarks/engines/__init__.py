"""PostgreSQL and Ray: the same answers, and how much of the speed."""
