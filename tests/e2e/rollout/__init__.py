"""Our parts as pods: installed, restarted and replaced."""
