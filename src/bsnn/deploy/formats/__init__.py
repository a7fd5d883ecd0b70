"""Other formats that a model file can be exported to; so far C99.

May import: the rest of deploy that needs no torch.
"""
