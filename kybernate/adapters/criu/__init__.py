"""CRIU: which one the node has, and dumps and restores below kyb-init with ours."""

from .engine import Criu
from .found import find_criu, is_static, lacking
from .running import Tools

__all__ = ["Criu", "Tools", "find_criu", "is_static", "lacking"]
