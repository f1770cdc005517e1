"""The same where seats take few requests at once, and where a registry is asked."""

from __future__ import annotations

from tests.unit.proxy.orders.machine import (
    WithALimit,
    WithARegistry,
    often,
    requests_go_only_to_granted_seats,
)

TestWithALimit = often(WithALimit)
TestWithARegistry = often(WithARegistry, 60)


def test_a_request_goes_only_to_a_seat_whose_lease_is_granted():
    requests_go_only_to_granted_seats(WithALimit)
