"""Why objects are as they are: one word each, in conditions, events and metrics. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Standing(StrEnum):
    """What follows from a reason: more becomes of it by itself, all is as it should be, or nothing
    more is tried."""

    RETRYABLE = "retryable"
    SUCCESS = "success"
    TERMINAL = "terminal"


OPEN, DONE, OVER = Standing.RETRYABLE, Standing.SUCCESS, Standing.TERMINAL


class Reasoned(StrEnum):
    """Reasons of a condition: each has a standing, and a sentence for the page of objects."""

    standing: Standing
    told: str

    def __new__(cls, word: str, standing: Standing, told: str) -> Self:
        """A member."""
        one = str.__new__(cls, word)
        one._value_ = word
        one.standing, one.told = standing, told
        return one

    @property
    def holds(self) -> bool:
        """Whether a condition with it is True."""
        return self.standing is Standing.SUCCESS
