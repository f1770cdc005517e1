"""Whatever happens in whatever order, the proxy's decisions keep what they promise."""

from __future__ import annotations

from tests.unit.proxy.orders.machine import AnyOrder, often, requests_go_only_to_granted_seats

TestAnyOrder = often(AnyOrder)


def test_a_request_goes_only_to_a_seat_whose_lease_is_granted():
    requests_go_only_to_granted_seats(AnyOrder)
