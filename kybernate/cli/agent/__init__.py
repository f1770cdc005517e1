"""`kybernate agent`: the agent of this node, over its Unix socket."""
