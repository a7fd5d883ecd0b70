"""Measurements that users can repeat: `bso bench`."""
