"""Tests of Kybernate and the equipment that they need."""
