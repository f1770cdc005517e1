"""Programs that hold GPU memory. They know nothing of Kybernate, nor of the simulated driver."""
