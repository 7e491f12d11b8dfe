"""The sub-commands, a module each: its options and what it does.

``flowhash --help`` and the shell's completion load all of them. So they import at the top what is
light, and rooms by their doors, which load nothing before it is used; the rest where it is used.
"""
