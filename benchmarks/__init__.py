"""The claims of FlowHash, measured: a room for each, every figure a ratio taken in one run.

    python -m benchmarks.search.run      # from the root of a clone; every command has --help

A room's ``run`` measures and writes its page in ``docs/results/``; where a room has more than
one command, the others have names of their own. ``data`` makes what is measured on, ``report`` the
page.
"""
