"""One box: `kybernate serve` beside what others do, and beside what `kybernate simulate` says."""
