"""A workload continues in another pod: both ends of a move, evacuations."""
