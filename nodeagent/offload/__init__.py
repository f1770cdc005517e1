"""A seat's way from RAM to NVMe and the object store, and back."""
