"""The same mathematics as `bsnn.nn`, faster. README.md explains each trick and how to switch it off.

May import: errors.
"""
