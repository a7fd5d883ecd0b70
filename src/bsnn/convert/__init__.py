"""Networks of other packages as networks of ours: one file per package, and what all conversions share.

The other package is never imported: the network that is given has done that. May import: nn, kernels, errors.
"""
