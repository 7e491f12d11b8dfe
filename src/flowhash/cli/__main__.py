"""``python -m flowhash.cli`` does what ``flowhash`` does."""

from flowhash.cli import main

main()
