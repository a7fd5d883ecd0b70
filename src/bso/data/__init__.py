"""Data sets, their augmentation, and batches of them."""
