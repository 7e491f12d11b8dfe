"""Files as data sets have them: arrays, images, archives, pickles."""
