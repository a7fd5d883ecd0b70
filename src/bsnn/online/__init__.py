"""The one loop over time (paper, Algorithm 1): online updates, streams, BPTT to compare with, loss, evaluation.

May import: models, data, optim, nn, kernels, errors.
"""
