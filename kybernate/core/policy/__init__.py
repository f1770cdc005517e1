"""What CheckpointPolicies say of pods, and when. Named apart from `core.placement.policies`."""
