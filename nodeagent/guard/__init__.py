"""Who uses the GPUs, what the host's memory can take, who died while parked."""
