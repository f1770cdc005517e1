"""What every service needs around its own work: settings, logs, probes, metrics."""
