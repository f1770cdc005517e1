"""Files of ours that outlive the process."""
