"""One box: `kybernate serve` and models' real processes on the simulated driver, without root."""
