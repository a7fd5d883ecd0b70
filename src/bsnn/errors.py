"""The one error that means: the caller can fix this."""


class UserError(ValueError):
    """A mistake of the caller: the message says what was received, what was expected and what to do.

    The command line prints it as one line and exits with status 2.
    """
