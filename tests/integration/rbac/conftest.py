"""Users with rights of their own, as tests of the controller have them."""

from __future__ import annotations

from tests.integration.controller.conftest import namespace, users

__all__ = ["namespace", "users"]
