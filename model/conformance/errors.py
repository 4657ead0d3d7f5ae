"""What is raised by calls of targets, and for what is no target."""

from __future__ import annotations


class MisuseError(Exception):
    """A call that no correct caller makes; the target refused it and kept its state."""


class NoReturnError(Exception):
    """A call has not returned, or one before has not."""


class RemoteError(Exception):
    """The failure of a target in another process: what was raised there (type, text and place), or how it has ended."""


class TargetError(Exception):
    """The target cannot be driven at all: it cannot be made, or lacks methods."""


class UnusableError(TargetError):
    """It cannot even be asked what it can be made as."""


def told(error: Exception) -> str:
    """An exception by its type and text; what was raised in another process says so itself."""
    return str(error) if isinstance(error, RemoteError) else f"{type(error).__name__}: {error}"
