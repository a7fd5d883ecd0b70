"""The command `bsnn`: each module parses one command, calls the library and prints. Nothing imports it."""

from bsnn.cli.commands import main

__all__ = ["main"]
