"""Measurements that users can repeat: `bsnn bench`."""
