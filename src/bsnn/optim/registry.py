"""The flip rules by name."""

LABELS = {"tbso": "T-BSO", "bso": "BSO", "sigma": "Sigma-BSO"}


def label(name: str) -> str:
    """How a flip rule is written in tables and figures.

    Example:
        >>> label("tbso")
        'T-BSO'
    """
    return LABELS[name]
