"""From a trained network to one that runs anywhere: the model file, lowering, the engine, and export formats.

May import: online, models, data, optim, nn, kernels, errors; never train. What runs a model file never imports torch.
"""
