"""Where a task finds the token of its identity: pure."""

from mandor.model.task import Identity

DEFAULT_FILE = "/run/mandor/identity/token"
RELATIVE_FILE = "identity/token"
"""For engines that put volumes below the working directory (`links`)."""


def file_of(identity: Identity, *, links: bool) -> str:
    """Where the task finds its token."""
    return identity.file or (RELATIVE_FILE if links else DEFAULT_FILE)
