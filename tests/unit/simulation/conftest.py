"""What storms leave."""

from __future__ import annotations

import gc
import logging

import pytest


@pytest.fixture
def swept():
    """Killed agents' tasks complain when they are collected: here, where it is ignored. Nothing may
    hold them any longer, as records of a log would, which pytest keeps until the next test."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.collect()
