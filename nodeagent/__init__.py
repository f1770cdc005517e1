"""The node agent: owner of a node's seats."""

import os

# Seats wait for an agent's start, and to look for plugins in each installed package takes an eighth
# of it. There are none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
