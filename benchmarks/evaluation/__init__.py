"""An evaluation of more than a million items: its time and its memory."""
