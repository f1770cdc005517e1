"""Errors by the caller's next step.

Every error that crosses a part's border is one of these, so that a caller decides by class and
never by reading a message. Messages are sentences: what is wrong, and what to do instead.
"""

from __future__ import annotations


class KybernateError(Exception):
    """Root of all errors raised by Kybernate."""


class ConfigError(KybernateError):
    """A setting is wrong; a person must change it. `field` names it as the user wrote it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RetryableError(KybernateError):
    """The same call may work later; `delay` is the suggested wait in seconds."""

    def __init__(self, message: str, delay: float = 1.0) -> None:
        super().__init__(message)
        self.delay = delay


class LeaveError(RetryableError):
    """The registry gives this node no leave to what lies in the object store, yet."""


class UnfitError(RetryableError):
    """The machine, or the release that runs on it, isn't now what an artifact needs; the state is
    kept until it is."""


class LockedError(UnfitError):
    """An artifact that nobody here can read now, for want of what a person can put back, such as
    an authority's certificate; it is kept until then."""


class ConflictError(KybernateError):
    """The world changed under the call; read it again, then decide again."""


class NotFoundError(KybernateError):
    """The thing that was named does not exist."""


class RefusedError(KybernateError):
    """A request that will never be right as it stands; the message says what to write instead.
    `reasons`: one word each of a closed set, where there is one."""

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class IllegalTransitionError(KybernateError):
    """An event met a seat in a state that has no such transition: a bug, never a user's mistake."""


class DriverError(KybernateError):
    """A GPU driver call failed. `code` is the driver's own number, `name` its name for it."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name


class DeadlineError(KybernateError):
    """Something outside did not answer within its deadline."""


class DumpRefusedError(KybernateError):
    """A process tree can't be dumped as it is: the message says what stands against it."""


class DumpError(KybernateError):
    """A dump failed. `suspect`: its tree may have run meanwhile, or have come to harm."""

    def __init__(self, message: str, *, suspect: bool = False) -> None:
        super().__init__(message)
        self.suspect = suspect


class RestoreError(KybernateError):
    """A dumped process tree could not be recreated; its images are as they were. `starved`: for
    want of memory, as it seems; `killed`: something was killed for it. `refused`: what lies in the
    container, or in the images, is not what was dumped, and may be put back."""

    def __init__(
        self,
        message: str,
        *,
        starved: bool = False,
        killed: bool = False,
        refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.starved = starved
        self.killed = killed
        self.refused = refused


class CorruptError(KybernateError):
    """What was read is not what was written: an artifact that must not be restored from here."""
