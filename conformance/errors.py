"""Errors that end in one precise sentence for the user."""


class UsageError(Exception):
    """A wrong option, case id, file or kernel name. Its text names field, expected and found."""


def printable(text: str) -> str:
    """``text`` on one line: names from files hold what a terminal would obey, which is escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )
