"""Plans that somebody else carries out, and their steps. Pure."""
