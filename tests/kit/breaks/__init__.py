"""What goes wrong on purpose: clocks, disks, stores, bodies; and the judge of histories."""
