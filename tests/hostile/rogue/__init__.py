"""Attacks on a real container, agent or service, as a hostile tenant would make them."""
