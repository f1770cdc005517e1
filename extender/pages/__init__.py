"""What people and the operator may ask of the extender."""
