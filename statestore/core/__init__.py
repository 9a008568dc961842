"""Words and numbers that every other layer uses: errors, options, key groups, clock, ids.

Imports nothing of the package and nothing heavy, so that the command line and the engine start
fast.
"""
