"""From a trained network to one that runs anywhere: the model file, the conversion, the engine and export formats.

May import: online, models, data, optim, nn, kernels, errors; never train. What exports a network imports torch; what
reads, runs, inspects or translates a model file does not.
"""
