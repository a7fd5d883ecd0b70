"""Other formats that a model file can be exported to: C99, and a page for browsers.

May import: the rest of deploy that needs no torch.
"""
