"""TierPlacement: which artifacts lie where, and how long they are kept."""
