"""RebalanceRequest: pods that are to go elsewhere, by a plan that somebody approves."""
