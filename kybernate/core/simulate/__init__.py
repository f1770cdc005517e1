"""Models that share GPUs, in virtual time, under the product's swap decision. Pure."""
