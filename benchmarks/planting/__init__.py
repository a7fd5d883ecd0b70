"""What `benchmarks/faults.py` is made of: faults, a copy of the tree to plant them in, and the tests that run there."""
