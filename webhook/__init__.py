"""Admission: pods that opt in become pods with a seat, and wrong ones are refused in words."""
