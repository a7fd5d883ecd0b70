"""What a network is made of (paper, Sections 3.1 and 3.2): one-bit weights, neurons, traces, synapses, BatchNorm.

May import: kernels, errors.
"""
