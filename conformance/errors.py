"""Errors that end in one precise sentence for the user."""


class UsageError(Exception):
    """A wrong option, case id, file or kernel name. Its text names field, expected and found."""
