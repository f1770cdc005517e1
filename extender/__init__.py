"""The kube-scheduler's HTTP extender: filter, prioritize, bind, preempt."""
