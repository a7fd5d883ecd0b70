"""The error for mistakes that the caller can fix, and the warning about what computes."""


class UserError(ValueError):
    """The caller's mistake. The message says what was received, what was expected and what to do.

    The command line prints it as one line and exits with status 2.
    """


class BackendWarning(UserWarning):
    """Something other than the chosen backend computes, with the same results, and the message says why."""
