"""Benches of saved states: tiers, packs, moves, and the registry that knows them."""
