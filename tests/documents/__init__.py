"""The documents as programs: every block of code in them is run, or at least read."""
