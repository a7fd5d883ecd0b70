"""The trained models that ship with the package: a model file and a card each, both under the model's name.

The card is a JSON file and the only source of its numbers; `benchmarks/zoo.py` makes both files from a run. Training
and deployment both look names up here, so it imports nothing but errors.
"""

from bsnn.zoo.cards import Card, card, describe, names, path

__all__ = ["Card", "card", "describe", "names", "path"]
