"""``python -m flowhash`` does what ``flowhash`` does."""

from flowhash.cli import main

main()
