"""How the bytes of an artifact are cut, found again and swept. Pure."""
