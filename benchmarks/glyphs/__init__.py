"""Ten thousand classes: the Hangul syllables in several faces."""
