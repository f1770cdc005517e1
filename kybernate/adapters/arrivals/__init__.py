"""What arrives at the sockets of seats' trees, and at pods whose trees were ended."""

from kybernate.adapters.arrivals.gate import NetworkGate
from kybernate.adapters.arrivals.watch import SocketArrivals

__all__ = ["NetworkGate", "SocketArrivals"]
