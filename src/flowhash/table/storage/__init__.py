"""The folder of a table on disk: manifest, files of segments, lock and commit."""
