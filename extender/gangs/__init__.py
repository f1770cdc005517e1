"""Gangs: planned, held, met and bound."""
