"""What arrives at the sockets of seats' trees."""

from kybernate.adapters.arrivals.watch import SocketArrivals

__all__ = ["SocketArrivals"]
