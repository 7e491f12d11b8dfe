"""The sub-commands' options and help; what they do is in the modules above, imported when run.

Nothing heavy is imported here: ``flowhash --help`` and the shell's completion read all of it.
"""
