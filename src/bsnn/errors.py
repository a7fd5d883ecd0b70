"""The error for mistakes that the caller can fix."""


class UserError(ValueError):
    """The caller's mistake. The message says what was received, what was expected and what to do.

    The command line prints it as one line and exits with status 2.
    """
